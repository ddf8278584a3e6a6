"""Greedy answers of a loaded model to the questions of some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from adaptft.models.stopping import stop_token_ids

_PLAIN_PROMPT = 16
"""Tokens of a row without a question (plain text) that are continued."""


def prompts_of(rows: Sequence[dict[str, Any]], count: int) -> list[list[int]]:
    """Token ids of the first ``count`` rows up to their first trained token, the shortest questions first."""
    prompts = []
    for row in rows:
        ids, trained = list(row["input_ids"]), list(row["trained"])
        prompts.append(ids[: trained.index(True) or min(_PLAIN_PROMPT, len(ids))])
    return sorted(prompts, key=len)[:count]


def greedy_answers(model: Any, tokenizer: Any, prompts: Sequence[list[int]], *, max_new_tokens: int) -> list[str]:
    """What ``model`` says to each prompt, all in one batch, the likeliest token each time."""
    width = max(map(len, prompts))
    padding = tokenizer.pad_token_id or 0
    ids = torch.tensor([[padding] * (width - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, pad_token_id=padding,
            do_sample=False, temperature=None, top_p=None, top_k=None, use_cache=True,
            eos_token_id=stop_token_ids(model.generation_config, tokenizer) or None,
        )  # fmt: skip
    model.train(was_training)
    texts: list[str] = tokenizer.batch_decode(found[:, width:], skip_special_tokens=True)
    return [text.strip() for text in texts]
