"""The served model once more, in transformers on the CPU: what it says by itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from adaptft import quiet
from adaptft.models import load_for_inference
from adaptft.models.stopping import stop_token_ids
from adaptft.plans import ServePlan


@dataclass(frozen=True, slots=True)
class Said:
    """A greedy answer; where it ended by itself, ``ids`` end with a stop token, whichever of them it was."""

    text: str
    ids: list[int]


class LocalModel:
    """Loaded when it is first asked; in the endpoint's type where that has 16 bit, since fp32 may not fit."""

    def __init__(self, path: Path, adapters: Path | None, plan: ServePlan) -> None:
        self._path, self._adapters, self._plan = path, adapters, plan

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        return load_for_inference(
            self._path, adapters=self._adapters, device="cpu", dtype=self._plan.dtype,
            trust_remote_code=self._plan.request.trust_remote_code,
        )  # fmt: skip

    @property
    def tokenizer(self) -> Any:
        """The adapter's own, where it has one."""
        return self._loaded[1]

    @cached_property
    def _stop_ids(self) -> list[int]:
        model, tokenizer = self._loaded
        return stop_token_ids(model.generation_config, tokenizer)

    def answer(self, prompt: list[int], max_tokens: int) -> Said:
        """Continue ``prompt`` greedily."""
        import torch

        model, tokenizer = self._loaded
        inputs = torch.tensor([prompt])
        with quiet.no_bars(), torch.inference_mode():
            found = model.generate(
                input_ids=inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max_tokens,
                do_sample=False, temperature=None, top_p=None, top_k=None,
                eos_token_id=self._stop_ids or None, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        ids = found[0, len(prompt) :].tolist()
        return self.said(ids, ended=bool(ids) and ids[-1] in self._stop_ids)

    def said(self, ids: list[int], *, ended: bool) -> Said:
        """An answer of these tokens, with or without the stop token that ended it."""
        said = ids[:-1] if ids and ids[-1] in self._stop_ids else ids
        text = self.tokenizer.decode(said, skip_special_tokens=True)
        return Said(text=text, ids=said + self._stop_ids[:1] if ended else said)

    def ids_of(self, text: str) -> list[int]:
        """The tokens of an answer that came as text."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def lead(self, before: list[int], own: int, other: int) -> float:
        """Nats by which the model finds ``own`` likelier than ``other`` after ``before``."""
        import torch

        with quiet.no_bars(), torch.inference_mode():
            logits = self._loaded[0](torch.tensor([before]), logits_to_keep=1).logits[0, -1].float()
        return float(logits[own] - logits[other])
