"""Answers in the terminal: one prompt, or a chat, of a base model, an adapter on its base, or an export."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adaptft import quiet
from adaptft.artifacts import is_adapter, read_artifact
from adaptft.errors import RequestError
from adaptft.facts import Machine
from adaptft.models import LocalModel, load_for_inference, locate, read_config
from adaptft.models.adapter_shapes import check_shapes, read_adapter
from adaptft.models.bases import locate_base
from adaptft.models.stopping import stop_token_ids
from adaptft.models.text_streams import TokenText
from adaptft.policy.devices import choose_device, inference_dtype
from adaptft.requests import InferRequest
from adaptft.shapes import model_shape

if TYPE_CHECKING:
    from torch import Tensor

Write = Callable[[str], None]
Message = dict[str, str]
COMMANDS = "/clear forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model said; ``finish_reason`` is ``interrupted`` where the user stopped it."""

    text: str
    finish_reason: Literal["stop", "length", "interrupted"]
    num_prompt_tokens: int
    num_tokens: int
    seconds: float


@dataclass(slots=True, kw_only=True)
class Speaker:
    """A loaded model with its tokenizer and how it should answer."""

    name: str
    model: Any
    tokenizer: Any
    request: InferRequest
    system: str | None
    stop_ids: list[int]

    @property
    def has_template(self) -> bool:
        """False for a base model that continues text and knows no turns."""
        return bool(self.tokenizer.chat_template)

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer together that the model was made for."""
        return int(self.model.config.max_position_embeddings)

    def reply(self, messages: list[Message], write: Write) -> Answer:
        """Answer the last of ``messages``; ``write`` gets the words as they come.

        Ctrl-C ends the answer where it is.

        Raises:
            RequestError: the prompt leaves no room, or the template does not take the messages.
        """
        prompt = self.render(messages)
        num_prompt_tokens = prompt.shape[-1]
        room = self.longest - num_prompt_tokens
        if room < 1:
            raise RequestError(
                f"The prompt has {num_prompt_tokens} tokens; {self.name} takes {self.longest} with the answer.",
                fix="Shorten it.",
            )
        collected = _Collector(self.tokenizer, write)
        started, was_interrupted = time.monotonic(), False
        try:
            self._generate(prompt, min(self.request.max_new_tokens, room), collected)
        except KeyboardInterrupt:
            was_interrupted = True
            collected.end()
        stopped = bool(collected.ids) and collected.ids[-1] in self.stop_ids
        return Answer(
            text=collected.text,
            finish_reason="interrupted" if was_interrupted else "stop" if stopped else "length",
            num_prompt_tokens=num_prompt_tokens,
            num_tokens=len(collected.ids),
            seconds=time.monotonic() - started,
        )

    def render(self, messages: list[Message]) -> Tensor:
        """Token ids [1, T] of the prompt; without a chat template the last message is continued as text."""
        from jinja2 import TemplateError

        if not self.has_template:
            ids = self.tokenizer(messages[-1]["content"], return_tensors="pt")["input_ids"]
        else:
            try:
                ids = self.tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
                )["input_ids"]
            except TemplateError as cause:
                raise RequestError(
                    f"The chat template of {self.name} does not take these messages: {cause}.",
                    fix="Leave --system out: some templates know no system prompt.",
                ) from cause
        return ids.to(self.model.device)  # type: ignore[no-any-return]

    def opening(self) -> list[Message]:
        """The messages before the first question: the system prompt, where there is one."""
        return [{"role": "system", "content": self.system}] if self.system else []

    def _generate(self, prompt: Tensor, max_new_tokens: int, streamer: Any) -> None:
        import torch
        from transformers import set_seed

        sampling: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if self.request.temperature > 0:
            set_seed(self.request.seed)
            sampling = {"do_sample": True, "temperature": self.request.temperature}
        with quiet.no_bars(), torch.inference_mode():
            self.model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_new_tokens,
                eos_token_id=self.stop_ids or None,
                pad_token_id=self.tokenizer.pad_token_id,
                streamer=streamer,
                **sampling,
            )


def load(request: InferRequest, machine: Machine) -> Speaker:
    """Find and load what ``request`` names; an adapter folder as the model brings its base along.

    A system prompt that the training had is taken where the request has none.

    Raises:
        ModelError: not found, not complete, or an adapter of another model.
        MachineError: a GPU was asked for and there is none.
        RequestError: a system prompt for a model without a chat template.
    """
    device = choose_device(machine, request.device).value
    base, adapters = _find(request)
    loaded, tokenizer = load_for_inference(
        base.path,
        adapters=adapters,
        device=device,
        dtype=inference_dtype(machine, device).value,
        trust_remote_code=request.trust_remote_code,
    )
    artifact = read_artifact(adapters or base.path)
    system = request.system if request.system is not None else artifact.system if artifact else None
    if request.system and not tokenizer.chat_template:
        raise RequestError(
            f"{request.model} has no chat template, so it takes no system prompt.",
            fix="Put the words into --prompt; the model continues it.",
        )
    return Speaker(
        name=request.model,
        model=loaded,
        tokenizer=tokenizer,
        request=request,
        system=system,
        stop_ids=stop_token_ids(loaded.generation_config, tokenizer),
    )


def answer(speaker: Speaker, prompt: str, *, write: Write = lambda text: None) -> Answer:
    """Answer one ``prompt``; ``write`` gets the words as they come.

    Raises:
        RequestError: the prompt is too long for the model.
    """
    return speaker.reply([*speaker.opening(), {"role": "user", "content": prompt}], write)


def chat(speaker: Speaker, *, read: Callable[[], str | None], write: Write) -> None:
    """Talk until ``read`` gives None or /exit; earlier turns are part of every prompt.

    The oldest turns are forgotten, with a notice, where the conversation becomes too long for the model.
    """
    write(f"{speaker.name}. {COMMANDS}\n")
    if not speaker.has_template:
        write("It has no chat template: it continues each text that you type, and remembers none.\n")
    messages = speaker.opening()
    while (line := read()) is not None:
        text = line.strip()
        if text == "/exit":
            return
        if text == "/clear":
            messages = speaker.opening()
            write("Forgotten.\n")
        elif text.startswith("/"):
            write(f"{COMMANDS}\n")
        elif text:
            messages = _turn(speaker, messages, text, write)


def _turn(speaker: Speaker, messages: list[Message], text: str, write: Write) -> list[Message]:
    """One question and its answer; a question that cannot be answered is said to be so and forgotten."""
    asked = _fit(speaker, [*messages, {"role": "user", "content": text}], write)
    try:
        said = speaker.reply(asked, write)
    except RequestError as refusal:
        write(f"{refusal}\n")
        return messages
    write(" (stopped)\n" if said.finish_reason == "interrupted" else "\n")
    return [*asked, {"role": "assistant", "content": said.text}]


def _fit(speaker: Speaker, messages: list[Message], write: Write) -> list[Message]:
    """Drop the oldest question and answer until a quarter of the model's length is free for the answer."""
    start, dropped = len(speaker.opening()), 0
    while len(messages) > start + 2 and speaker.render(messages).shape[-1] > speaker.longest * 3 // 4:
        messages = messages[:start] + messages[start + 2 :]
        dropped += 1
    if dropped:
        write(f"({dropped} of the oldest turns forgotten: the conversation is too long for the model)\n")
    return messages


class _Collector:
    """transformers' streamer interface: keeps the ids and writes text as soon as whole characters are there."""

    def __init__(self, tokenizer: Any, write: Write) -> None:
        self._tokens = TokenText(tokenizer)
        self._write = write
        self._is_prompt = True
        self.text = ""

    @property
    def ids(self) -> list[int]:
        """The answer's tokens so far."""
        return self._tokens.ids

    def put(self, value: Tensor) -> None:
        """The prompt once, then each token."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self._say(self._tokens.push(value.flatten().tolist()))

    def end(self) -> None:
        """Nothing follows."""
        self._say(self._tokens.end())

    def _say(self, piece: str) -> None:
        self.text += piece
        if piece:
            self._write(piece)


def _find(request: InferRequest) -> tuple[LocalModel, Path | None]:
    """The base (or a complete model) and the adapter, checked against each other."""
    hub, trust = request.hub, request.trust_remote_code
    model: str | None = request.model
    folder = Path(request.adapters) if request.adapters else None
    if folder is None and is_adapter(Path(request.model)):
        model, folder = None, Path(request.model)
    if folder is None:
        return locate(request.model, hub=hub, trust_remote_code=trust, allow_quantized=True), None
    adapter = read_adapter(folder.name, folder)
    base = locate_base(folder, model, hub=hub, trust_remote_code=trust)
    check_shapes(adapter, model_shape(read_config(str(base.path)), base.name))
    return base, folder
