"""Which characters of a rendered conversation are in the loss: the answers, found by rendering prefixes.

For the answer at turn ``i`` the template renders the turns before it with the generation prompt: that
is what serving sends. Where the whole conversation continues that text, the answer begins there.
Nothing is ever found by searching for a marker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from adaptft.data.conversation import BadRow, Conversation, Turn
from adaptft.data.templates import ChatTemplate, Message

EMPTY_THINKING = (
    "answers without reasoning got an empty closed reasoning block: the generation prompt of this model opens one"
)
EMPTY_THINKING_BY_TEMPLATE = (
    "the chat template writes an empty reasoning block before answers without reasoning, and it is in the loss"
)
REASONING_STRIPPED = (
    "earlier answers are not in the loss: the chat template strips their reasoning, so the model never sees it"
)
NO_CONTINUATION = (
    "earlier answers are not in the loss: as history the chat template writes them in another way than served answers"
)
NO_GENERATION_PROMPT = "the chat template adds no generation prompt: the header of the answer is part of the loss"
NO_END_OF_TURN = "the chat template ends answers with no token of their own; the end-of-text token was added"

_EMPTY_BLOCK = re.compile(r"\s*([<\[])\|?(\w+)\|?[>\]]\s*\1[/|][\w/|]+[>\]]\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedText:
    """Text with the character spans that are in the loss.

    ``prompt_end`` is where the last answer begins: everything before it is tokenised as one text, as
    serving does. ``add_eos`` asks for the end-of-text token at the end, in the loss.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    prompt_end: int
    add_eos: bool = False
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Rendering:
    """One conversation on its way through the template."""

    template: ChatTemplate
    turns: tuple[Turn, ...]
    messages: list[Message]
    tools: list[Message]
    notes: list[str] = field(default_factory=list)

    def prompt_before(self, index: int) -> str:
        return self.template.render(self.messages[:index], self.tools, prompt=True)

    def through(self, index: int) -> str:
        return self.template.render(self.messages[: index + 1], self.tools)


def mask(
    conversation: Conversation, template: ChatTemplate, *, train_on_prompt: bool = False, mask_history: bool = False
) -> MaskedText:
    """Render a conversation that ends with an answer, and mark what is in the loss.

    Raises:
        BadRow: the template refuses it, or nothing of it would be trained.
    """
    messages, notes = template.messages(conversation)
    rendering = _Rendering(template, conversation.turns, messages, list(conversation.tools), notes)
    last = len(messages) - 1
    offset = len(conversation.turns) - len(messages)  # 1 where the system prompt was merged
    prompt = rendering.prompt_before(last)
    answer = _last_answer(rendering, prompt, conversation.turns[-1])
    text = prompt + (answer if template.ends_turns else answer.rstrip())
    spans = []
    if not mask_history:
        for index in range(last):
            turn = conversation.turns[index + offset]
            if turn.is_answer and turn.trained and not turn.is_empty:
                spans += _earlier_span(rendering, index, turn, prompt)
    if not template.generation_prompt:
        notes.append(NO_GENERATION_PROMPT)
    if not template.ends_turns:
        notes.append(NO_END_OF_TURN)
    if conversation.turns[-1].trained:
        spans.append((len(prompt), len(text.rstrip())))
    if train_on_prompt:
        spans = [(0, len(text.rstrip()))]
    if not spans:
        raise BadRow("nothing in the loss: the row keeps its answers out of it")
    return MaskedText(
        text=text, spans=tuple(spans), prompt_end=len(prompt), add_eos=not template.ends_turns,
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _last_answer(rendering: _Rendering, prompt: str, turn: Turn) -> str:
    """The last answer as it continues the prompt that serving will send."""
    whole = rendering.through(len(rendering.messages) - 1)
    thinking = rendering.template.thinking
    if whole.startswith(prompt):
        answer = whole[len(prompt) :]
        if _is_faithful(answer, turn, rendering.template):
            if _EMPTY_BLOCK.match(answer) and not _EMPTY_BLOCK.match(turn.content):
                rendering.notes.append(EMPTY_THINKING_BY_TEMPLATE)
            if thinking.opened and answer.lstrip().startswith(thinking.end):
                rendering.notes.append(EMPTY_THINKING)
            return answer
    return _built_answer(rendering, turn)


def _is_faithful(answer: str, turn: Turn, template: ChatTemplate) -> bool:
    """True where the template kept the answer and its reasoning, and reasoning opens exactly once."""
    reasoning, text = _parts(turn, template)
    if text.strip() not in answer or (reasoning or "").strip() not in answer:
        return False
    if not template.thinking.opened:
        return True
    opened_again = answer.lstrip().startswith(template.thinking.start)
    return not opened_again and template.thinking.end in answer


def _parts(turn: Turn, template: ChatTemplate) -> tuple[str | None, str]:
    """Reasoning and answer of a turn, whether in fields of their own or between tags in the text.

    Raises:
        BadRow: the text opens reasoning and does not close it, which would be learned.
    """
    tags = template.thinking
    if turn.reasoning:
        return turn.reasoning, turn.content
    before, end, after = turn.content.partition(tags.end)
    starts_with_tag = before.lstrip().startswith(tags.start)
    expects_reasoning = bool(tags.opened) or template.shows_reasoning
    if starts_with_tag and expects_reasoning and not end:
        raise BadRow("reasoning that is opened and never closed (a cut answer?)")
    if not end or not (starts_with_tag or (expects_reasoning and tags.start not in before)):
        return None, turn.content
    return before.lstrip().removeprefix(tags.start), after


def _built_answer(rendering: _Rendering, turn: Turn) -> str:
    """The last answer where the template does not continue its own generation prompt: reasoning, text, end of turn.

    The form is Qwen3's: a newline inside the tags, an empty line after them.
    """
    tags = rendering.template.thinking
    reasoning, text = _parts(turn, rendering.template)
    closing = rendering.template.closing(rendering.messages[:-1], rendering.messages[-1], rendering.tools)
    if reasoning is None and not tags.opened:
        raise BadRow("the chat template does not continue its own generation prompt with the answer")
    if reasoning is None:
        rendering.notes.append(EMPTY_THINKING)
    opening = "" if tags.opened else f"{tags.start}\n"
    return f"{opening}{(reasoning or '').strip()}\n{tags.end}\n\n{text.lstrip()}{closing}"


def _earlier_span(rendering: _Rendering, index: int, turn: Turn, text: str) -> list[tuple[int, int]]:
    """The span of an answer inside the conversation, or nothing and a note where serving would not see it so."""
    try:
        before = rendering.prompt_before(index)
        through = rendering.through(index)
    except BadRow:  # a template may refuse a conversation that begins with the answer
        before, through = "", ""
    reasoning, answer = _parts(turn, rendering.template)
    start = len(before)
    end = _end_of_turn(text, through, start) if before and text.startswith(before) else None
    kept = end is not None and (reasoning or "").strip() in text[start:end] and answer.strip() in text[start:end]
    if end is not None and kept:
        return [(start, end)]
    rendering.notes.append(REASONING_STRIPPED if reasoning else NO_CONTINUATION)
    return []


def _end_of_turn(text: str, through: str, start: int) -> int | None:
    """Where the turn ends that begins at ``start``; ``through`` is the conversation up to and with it.

    The two may differ by an empty reasoning block, which some templates write for the last answer only.
    """
    if not text.startswith(through):
        block = _EMPTY_BLOCK.match(through, start)
        if block is None:
            return None
        through = through[:start] + through[block.end() :]
        if not text.startswith(through):
            return None
    return len(through.rstrip())
