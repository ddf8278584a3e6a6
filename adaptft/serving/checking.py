"""``adaptft serve --check``: does a running endpoint see the tokens that training saw, and answer as the model does?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft import data
from adaptft.artifacts import Artifact, read_artifact
from adaptft.errors import ServeError
from adaptft.models import load_tokenizer
from adaptft.plans import ServePlan
from adaptft.serving.client import post
from adaptft.serving.local_answers import LocalModel, Said

NUM_ROWS, NUM_ANSWERS, ANSWER_TOKENS = 8, 3, 16
NEAR_TIE = 0.5
"""Nats. Where the endpoint's token is so close to the likeliest, rounding may choose it: no difference in serving."""

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One served name: rows whose tokens are training's, answers that are the model's, and ties that parted."""

    name: str
    num_rows: int
    num_answers: int
    num_ties: int
    rows: str


def check_endpoint(url: str, plan: ServePlan, *, api_key: str | None, log: Log = lambda _: None) -> tuple[Checked, ...]:
    """Check every served model of ``plan`` at ``url`` (ending in /v1) against training's own rendering.

    The answers are compared with the model's own in transformers on the CPU, token by token.

    Raises:
        ServeError: the endpoint does not answer, or differs; the message shows the first differing token.
        DataError: there are no rows to ask.
    """
    base = Path(plan.model_path)
    names = {plan.served_model_name: None} | {name: Path(folder) for name, folder in plan.adapters.items()}
    if plan.adapters and read_artifact(base) is None:
        del names[plan.served_model_name]  # the base itself was not trained here
    return tuple(_check(url, plan, name, folder, api_key, log) for name, folder in names.items())


def _check(url: str, plan: ServePlan, name: str, adapters: Path | None, api_key: str | None, log: Log) -> Checked:
    base = Path(plan.model_path)
    folder = adapters or base
    tokenizer = load_tokenizer(folder if (folder / "tokenizer_config.json").is_file() else base)
    log(f"comparing the tokens of rows as {name}")
    recorded = data.read_rendering(folder)
    for question in recorded.questions if recorded else ():
        _compare_tokens(name, question, _served_ids(url, name, question, api_key), tokenizer)
    settings, words = _rows_of(read_artifact(folder))
    asked = data.questions(settings, tokenizer, NUM_ROWS)
    for question in asked:
        _compare_tokens(name, question, _served_ids(url, name, question, api_key), tokenizer)
    chats = [question for question in asked if question.messages][:NUM_ANSWERS]
    log(f"comparing {len(chats)} answers of {name} with the model's own")
    ties = _compare_answers(url, name, chats, LocalModel(base, adapters, plan), api_key) if chats else 0
    return Checked(name=name, num_rows=len(asked), num_answers=len(chats), num_ties=ties, rows=words)


def _rows_of(artifact: Artifact | None) -> tuple[data.DataSettings, str]:
    """The rows a result was trained on, read as training read them; the built-in test rows for other models."""
    if artifact is None or not artifact.dataset:
        return data.DataSettings(sources=(str(data.builtin("test")),)), "the built-in rows"
    settings = data.DataSettings(sources=artifact.dataset, system=artifact.system, columns=artifact.columns)
    return settings, f"the training data ({', '.join(artifact.dataset)})"


def _served_ids(url: str, name: str, question: data.Question, api_key: str | None) -> list[int]:
    """The tokens that the endpoint makes of a row: vLLM's /tokenize, which adaptft's own server has as well."""
    body: dict[str, Any] = {"model": name}
    if question.text is not None:
        body |= {"prompt": question.text, "add_special_tokens": True}
    else:
        body |= {"messages": list(question.messages), "add_generation_prompt": True}
        body |= {"tools": list(question.tools)} if question.tools else {}
    return list(post(f"{url.removesuffix('/v1')}/tokenize", body, api_key=api_key)["tokens"])


def _compare_tokens(name: str, question: data.Question, served: list[int], tokenizer: Any) -> None:
    trained = list(question.prompt_ids)
    place = first_difference(trained, served)
    if place is None:
        return
    there, here = (_token(ids, place, tokenizer) for ids in (served, trained))
    before = tokenizer.decode(trained[max(0, place - 8) : place])
    raise ServeError(
        f"{name} is served with other tokens than it was trained on: in {question.where}, token {place} is {there} "
        f"where training had {here}, after {before!r}.",
        fix="Serve the folder that training or export wrote, with its own chat_template.jinja and tokenizer files.",
    )


def first_difference(wanted: list[int], found: list[int]) -> int | None:
    """The first place where two lists of tokens differ, None where they are equal."""
    for place, (one, other) in enumerate(zip(wanted, found, strict=False)):
        if one != other:
            return place
    return None if len(wanted) == len(found) else min(len(wanted), len(found))


def _compare_answers(
    url: str, name: str, asked: Iterable[data.Question], model: LocalModel, api_key: str | None
) -> int:
    """The number of answers that part from the model's own at a near tie."""
    ties = 0
    for question in asked:
        body: dict[str, Any] = {"model": name, "messages": list(question.messages), "return_token_ids": True}
        body |= {"tools": list(question.tools)} if question.tools else {}
        body |= {"temperature": 0, "max_tokens": ANSWER_TOKENS}
        choice = post(f"{url}/chat/completions", body, api_key=api_key)["choices"][0]
        served = choice.get("token_ids")
        if served is None:  # an engine without return_token_ids
            served = model.ids_of(choice["message"].get("content") or "")
        own = model.answer(list(question.prompt_ids), ANSWER_TOKENS)
        ties += _is_tie(name, question, own, model.said(served, ended=choice["finish_reason"] != "length"), model)
    return ties


def _is_tie(name: str, question: data.Question, own: Said, served: Said, model: LocalModel) -> bool:
    """False for equal answers, True where rounding may have chosen the other token."""
    place = first_difference(own.ids, served.ids)
    if place is None:
        return False
    there, here = (_token(ids, place, model.tokenizer) for ids in (served.ids, own.ids))
    lead = float("inf")
    if place < min(len(own.ids), len(served.ids)):
        lead = model.lead([*question.prompt_ids, *own.ids[:place]], own.ids[place], served.ids[place])
    if lead <= NEAR_TIE:
        return True
    raise ServeError(
        f"{name} answers {question.where} otherwise than the model does: {served.text!r}, not {own.text!r}; "
        f"the first difference is {there} where the model says {here} (likelier by {lead:.2f} nats).",
        fix="Is it another model, or are stop tokens missing? Serve the folder that training or export wrote.",
    )


def _token(ids: list[int], place: int, tokenizer: Any) -> str:
    if place >= len(ids):
        return "the end"
    return f"{ids[place]} {tokenizer.decode([ids[place]])!r}"
