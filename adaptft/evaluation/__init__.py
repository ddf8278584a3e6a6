"""Loss and perplexity of models on rows."""

from adaptft.evaluation.evaluate import evaluate, score_folder
from adaptft.evaluation.scoring import Score, score

__all__ = ["Score", "evaluate", "score", "score_folder"]
