"""Loss and perplexity of models on rows, how near two models are, and what they answer."""

from adaptft.evaluation.answers import greedy_answers, prompts_of
from adaptft.evaluation.evaluate import evaluate, loaded
from adaptft.evaluation.fidelity import Observation, compare, observe
from adaptft.evaluation.scoring import Score, score

__all__ = [
    "Observation",
    "Score",
    "compare",
    "evaluate",
    "greedy_answers",
    "loaded",
    "observe",
    "prompts_of",
    "score",
]
