"""The rows of a step whose numbers were none, written down for people to look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from adaptft.kernels.linear_cross_entropy import IGNORED
from adaptft.training.parts import TENSORS, Batch

FOLDER = "bad-steps"
MOST_FILES = 16
"""Steps written down in one run: what is wrong shows in the first ones."""


def write_step(output_dir: Path, step: int, window: Sequence[Batch], decode: Callable[[list[int]], str] | None) -> str:
    """Write every document of ``window`` as a JSON line of text, tokens and what of them is trained.

    Returns:
        The path of the file; empty where there are enough of them already.
    """
    folder = output_dir / FOLDER
    if folder.exists() and len(list(folder.iterdir())) >= MOST_FILES:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step}.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for number, batch in enumerate(window):
            for ids, trained in _documents(batch):
                text = decode(ids) if decode else None
                line = {"micro_batch": number, "text": text, "input_ids": ids, "trained": trained}
                stream.write(json.dumps(line, ensure_ascii=False) + "\n")
    return str(path)


def _documents(batch: Batch) -> list[tuple[list[int], list[bool]]]:
    """Tokens and loss mask (moved back: labels are shifted) of each document with a trained token."""
    found = []
    columns = (batch[name].cpu().numpy() for name in TENSORS)
    for ids, labels, positions in zip(*columns, strict=True):
        edges = [*np.flatnonzero(positions == 0).tolist(), len(ids)]
        for begin, end in pairwise(edges):
            trained = [False, *(labels[begin : end - 1] != IGNORED).tolist()]
            if any(trained):
                length = len(trained) - trained[::-1].index(True)  # filling may follow
                found.append((ids[begin : begin + length].tolist(), trained[:length]))
    return found


def tokenizer_of(model_path: Path) -> Callable[[list[int]], str]:
    """Decodes with the tokenizer in ``model_path``, which is read when it is needed first."""

    def decode(ids: list[int]) -> str:
        from adaptft import models

        return str(models.load_tokenizer(model_path).decode(ids))

    return decode
