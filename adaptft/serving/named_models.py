"""The served names: one model in memory, an adapter or none switched on for each answer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from adaptft import quiet
from adaptft.models.text_streams import StopTexts, TokenText
from adaptft.serving.api_errors import ApiError
from adaptft.serving.asked import Asked

_COLDEST = 1e-5
"""Temperatures below are greedy: logits over them would overflow (vLLM has the same limit)."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """A finished answer to one prompt; ``num_tokens`` counts the token that ended it too."""

    text: str
    num_prompt_tokens: int
    num_tokens: int
    finish_reason: Literal["stop", "length"]
    ids: list[int]


@dataclass(slots=True, kw_only=True)
class NamedModel:
    """A served name: the shared model with one adapter on, or with none.

    Answers under different names follow each other: ``lock`` is one for all of them.
    """

    model: Any
    tokenizer: Any
    adapter: str | None
    generation_config: Any
    lock: threading.Lock
    max_model_len: int

    def check_length(self, prompt: list[int], asked: Asked) -> None:
        """Refuse a prompt that leaves no room for the answer.

        Raises:
            ApiError: it is too long; the sentence has both numbers.
        """
        most, wanted = self.max_model_len, asked.max_tokens or 1
        if len(prompt) + wanted > most:
            raise ApiError(
                f"The prompt has {len(prompt)} tokens and the answer may have {wanted} or more: a request takes "
                f"{most} tokens at most, prompt and answer together."
                if asked.max_tokens is None
                else f"The prompt has {len(prompt)} tokens and max_tokens asks for {wanted}: a request takes "
                f"{most} tokens at most, prompt and answer together.",
                param="messages",
                code="context_length_exceeded",
            )
        if (unknown := max(asked.logit_bias, default=0)) >= self.model.config.vocab_size:
            raise ApiError(f"logit_bias names the token {unknown}, which the model lacks.", param="logit_bias")

    def answer(
        self, prompt: list[int], asked: Asked, say: Callable[[str], None], is_cancelled: Callable[[], bool]
    ) -> Answer:
        """Continue ``prompt``; ``say`` gets the text in pieces, from this thread. The prompt has been checked."""
        speech = _Speech(TokenText(self.tokenizer), StopTexts(asked.stops), say, is_cancelled)
        inputs = torch.tensor([prompt], device=self.model.device)
        config = self._config(asked, self.max_model_len - len(prompt))
        with self.lock, quiet.no_bars(), self._adapter_switched(), torch.inference_mode():
            if not is_cancelled():
                if asked.seed is not None:
                    torch.manual_seed(asked.seed)
                self.model.generate(
                    input_ids=inputs,
                    attention_mask=torch.ones_like(inputs),
                    generation_config=config,
                    streamer=speech,
                    stopping_criteria=StoppingCriteriaList([_Stopped(speech)]),
                    logits_processor=LogitsProcessorList(_penalties(asked, len(prompt))),
                )
        ids = speech.tokens.ids
        has_ended = speech.stops.found or (bool(ids) and ids[-1] in (config.eos_token_id or []))
        return Answer(
            text="".join(speech.said),
            num_prompt_tokens=len(prompt),
            num_tokens=len(ids),
            finish_reason="stop" if has_ended else "length",
            ids=ids,
        )

    def _config(self, asked: Asked, room: int) -> Any:
        config = copy.deepcopy(self.generation_config)
        config.max_length, config.min_new_tokens = None, None
        config.max_new_tokens = asked.max_tokens or min(config.max_new_tokens or room, room)
        if config.pad_token_id is None:
            config.pad_token_id = self.tokenizer.pad_token_id
        if asked.temperature is not None:
            config.do_sample = asked.temperature >= _COLDEST
        if config.do_sample:
            top_k = None if asked.top_k is None else max(asked.top_k, 0)
            given = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": top_k, "min_p": asked.min_p}
            config.update(**{name: value for name, value in given.items() if value is not None})
        else:
            config.temperature = config.top_p = config.top_k = config.min_p = None
        if asked.repetition_penalty is not None:
            config.repetition_penalty = asked.repetition_penalty
        if asked.logit_bias:
            config.sequence_bias = {(token,): bias for token, bias in asked.logit_bias.items()}
        return config

    def _adapter_switched(self) -> AbstractContextManager[None]:
        if self.adapter is not None:
            self.model.set_adapter(self.adapter)
        elif hasattr(self.model, "disable_adapter"):
            return self.model.disable_adapter()  # type: ignore[no-any-return]
        return nullcontext()


def find(models: Mapping[str, NamedModel], name: str) -> NamedModel:
    """The model that is served as ``name``.

    Raises:
        ApiError: 404; the sentence names what is served.
    """
    if name not in models:
        served = ", ".join(models)
        raise ApiError(
            f"No model {name} is served here, only: {served}", status=404, param="model", code="model_not_found"
        )
    return models[name]


@dataclass(slots=True)
class _Speech:
    """transformers' streamer interface: tokens to text, up to a stop text."""

    tokens: TokenText
    stops: StopTexts
    say: Callable[[str], None]
    is_cancelled: Callable[[], bool]
    said: list[str] = field(default_factory=list)
    _is_prompt: bool = True

    def put(self, value: torch.Tensor) -> None:
        """The prompt once, then each token."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self._say(self.stops.push(self.tokens.push(value.flatten().tolist())))

    def end(self) -> None:
        """Nothing follows."""
        self._say(self.stops.push(self.tokens.end()))
        self._say(self.stops.end())

    def _say(self, piece: str) -> None:
        if piece:
            self.said.append(piece)
            self.say(piece)


class _Stopped(StoppingCriteria):  # type: ignore[misc]
    """Ends where a stop text is complete, or the client has left."""

    def __init__(self, speech: _Speech) -> None:
        self._speech = speech

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        is_done = self._speech.stops.found or self._speech.is_cancelled()
        return torch.full((input_ids.shape[0],), is_done, device=input_ids.device)


def _penalties(asked: Asked, num_prompt_tokens: int) -> list[LogitsProcessor]:
    if not asked.frequency_penalty and not asked.presence_penalty:
        return []
    return [_Penalties(asked.frequency_penalty, asked.presence_penalty, num_prompt_tokens)]


class _Penalties(LogitsProcessor):  # type: ignore[misc]
    """OpenAI's penalties: on the logits of tokens by how often the answer has them, and whether it has them."""

    def __init__(self, frequency: float, presence: float, num_prompt_tokens: int) -> None:
        self._frequency, self._presence, self._start = frequency, presence, num_prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros_like(scores)
        answer = input_ids[:, self._start :]
        counts.scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
        return scores - self._frequency * counts - self._presence * (counts > 0)
