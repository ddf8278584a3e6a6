"""A request's JSON to what is asked for; whatever this engine cannot do is refused in words, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adaptft.serving.api_errors import ApiError, unsupported

MAX_STOPS = 16

# field -> values that ask for nothing: clients send these as their defaults. Any other value is refused.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "functions": ([],),
    "function_call": ("none",),
    "parallel_tool_calls": (True,),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
_LABELS = frozenset(("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"))
"""Said about a request, and no wish on its answer."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
_SHARED = frozenset(("model", "stream", "stream_options", "stop", "seed", "max_tokens", "logit_bias", *_SAMPLING))
_CHAT = frozenset(
    ("messages", "tools", "tool_choice", "max_completion_tokens", "chat_template_kwargs", "return_token_ids")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What both kinds of completions share; None leaves it to the model's generation config."""

    model: str
    is_stream: bool
    with_usage: bool
    with_token_ids: bool
    with_tools: bool
    """True where calls of tools are looked for in the answer."""
    stops: tuple[str, ...]
    seed: int | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]


def read_chat(body: Mapping[str, Any]) -> Asked:
    """The options of a chat request; its messages are read by ``adaptft.serving.prompts``.

    Raises:
        ApiError: an option that does not exist, cannot be meant or is not supported here.
    """
    return _read(body, _SHARED | _CHAT)


def read_text(body: Mapping[str, Any]) -> Asked:
    """The options of a text completion; errors as in ``read_chat``."""
    return _read(body, _SHARED | {"prompt"})


def _read(body: Mapping[str, Any], known: frozenset[str]) -> Asked:
    _check_fields(body, known)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError("The request names no model: its field model has to be a served name.", param="model")
    longest = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError("stream_options has to be an object.", param="stream_options")
    return Asked(
        model=model,
        is_stream=bool(_flag(body, "stream")),
        with_usage=bool(options.get("include_usage")),
        with_token_ids=bool(_flag(body, "return_token_ids")),
        with_tools=bool(body.get("tools")) and body.get("tool_choice") != "none",
        stops=_stops(body.get("stop")),
        seed=_whole(body, "seed", at_least=-(2**63)),
        max_tokens=_whole(body, longest, at_least=1),
        temperature=_number(body, "temperature", lambda x: 0 <= x <= 2, "from 0 to 2"),
        top_p=_number(body, "top_p", lambda x: 0 < x <= 1, "above 0 and at most 1"),
        top_k=_whole(body, "top_k", at_least=-1),
        min_p=_number(body, "min_p", lambda x: 0 <= x <= 1, "from 0 to 1"),
        repetition_penalty=_number(body, "repetition_penalty", lambda x: x > 0, "above 0"),
        frequency_penalty=_number(body, "frequency_penalty", lambda x: -2 <= x <= 2, "from -2 to 2") or 0.0,
        presence_penalty=_number(body, "presence_penalty", lambda x: -2 <= x <= 2, "from -2 to 2") or 0.0,
        logit_bias=_bias(body.get("logit_bias")),
    )


def _check_fields(body: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in known or name in _LABELS or value is None:
            continue
        if name not in _NEUTRAL:
            raise ApiError(f"There is no option {name} here.", param=name, code="unknown_parameter")
        if not any(type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL[name]):
            raise unsupported(f"{name}={value!r}" if isinstance(value, bool | int | str) else name, name)


def _flag(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(f"{name} has to be true or false; it is {value!r}.", param=name)
    return value


def _whole(body: Mapping[str, Any], name: str, *, at_least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value < 2**63:
        raise ApiError(f"{name} has to be a whole number of at least {at_least}; it is {value!r}.", param=name)
    return value


def _number(body: Mapping[str, Any], name: str, is_valid: Callable[[float], bool], valid: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_valid(value):
        raise ApiError(f"{name} has to be a number {valid}; it is {value!r}.", param=name)
    return float(value)


def _stops(value: object) -> tuple[str, ...]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ApiError("stop has to be a text or a list of texts, none of them empty.", param="stop")
    if len(texts) > MAX_STOPS:
        raise ApiError(f"stop has {len(texts)} texts; {MAX_STOPS} at most can be given.", param="stop")
    return tuple(texts)


def _bias(value: object) -> Mapping[int, float]:
    try:
        biases = {int(token): float(bias) for token, bias in dict(value or {}).items()}  # type: ignore[call-overload]
    except (TypeError, ValueError):
        biases = {-1: 0.0}
    if any(token < 0 or not -100 <= bias <= 100 for token, bias in biases.items()):
        raise ApiError("logit_bias has to map token ids to numbers from -100 to 100.", param="logit_bias")
    return biases
