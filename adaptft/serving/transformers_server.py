"""transformers' OpenAI server (``transformers serve``) for one model and its adapters; run as a module.

The server's own command lists whatever lies in the hub's cache as its models, knows no adapters, no keys
and no length limit, and ignores ``max_completion_tokens`` and a temperature where the model is greedy by
default. Its parts are used here with those gaps closed:

- the model and each adapter stand in /v1/models under their served names; the base is in memory once
- stop tokens and chat template of an adapter's folder hold for that adapter
- ``ADAPTFT_API_KEY`` in the environment is asked for under /v1
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from transformers import GenerationConfig
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.transcription import TranscriptionHandler
from transformers.cli.serving.utils import GenerationState

from adaptft.errors import AdaptftError
from adaptft.models import load_for_inference, load_tokenizer
from adaptft.models.adapting import put_on
from adaptft.models.stopping import stop_token_ids
from adaptft.quiet import printing_to, quiet_libraries

KEY_VARIABLE = "ADAPTFT_API_KEY"
TOKENIZER, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"


class NamedModel:
    """One served name: the shared model with one adapter on, or with none; otherwise it is that model.

    ``generate`` switches the adapter and holds the lock, so answers under different names follow each other.
    """

    def __init__(
        self, model: Any, adapter: str | None, generation_config: Any, lock: threading.Lock, max_model_len: int
    ) -> None:
        self._model = model
        self._adapter = adapter
        self._lock = lock
        self._max_model_len = max_model_len
        self.generation_config = generation_config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *, generation_config: Any, input_ids: Any, **inputs: Any) -> Any:
        """Generate with this name's adapter; the answer is cut where the longest request ends."""
        room = self._max_model_len - input_ids.shape[-1]
        if room < 1:
            raise HTTPException(
                400, f"The prompt has {input_ids.shape[-1]} tokens; a request may have {self._max_model_len}."
            )
        generation_config.max_new_tokens = min(generation_config.max_new_tokens or room, room)
        with self._lock, self._adapter_switched():
            return self._model.generate(generation_config=generation_config, input_ids=input_ids, **inputs)

    def _adapter_switched(self) -> AbstractContextManager[None]:
        if self._adapter is not None:
            self._model.set_adapter(self._adapter)
        elif hasattr(self._model, "disable_adapter"):
            return self._model.disable_adapter()  # type: ignore[no-any-return]
        return nullcontext()


class NamedModels(ModelManager):  # type: ignore[misc]
    """Answers for exactly the served names, in the place of the hub's cache."""

    def __init__(self, models: dict[str, tuple[NamedModel, Any]]) -> None:
        super().__init__(device="cpu")
        self._models = models

    @staticmethod
    def process_model_name(model_id: str) -> str:
        """Names are served as they are, without a revision."""
        return model_id

    def load_model_and_processor(self, model_id_and_revision: str, *_: Any, **__: Any) -> tuple[NamedModel, Any]:
        """The model under a served name and its tokenizer; any other name is answered with 404."""
        try:
            return self._models[model_id_and_revision]
        except KeyError:
            names = ", ".join(self._models)
            raise HTTPException(404, f"No model {model_id_and_revision} is served here, only: {names}") from None

    def get_gen_models(self, cache_dir: str | None = None) -> list[dict[str, Any]]:  # type: ignore[override]
        """The served names as /v1/models lists them."""
        return [{"id": name, "object": "model", "created": 0, "owned_by": "adaptft"} for name in self._models]


class RequestedSampling:
    """A handler's generation config with what is dropped silently otherwise."""

    def _build_generation_config(self, body: dict[str, Any], model_generation_config: Any, use_cb: bool = False) -> Any:
        temperature = body.get("temperature")
        changed = body | {"max_tokens": body.get("max_completion_tokens") or body.get("max_tokens")}
        config = super()._build_generation_config(  # type: ignore[misc]
            changed | {"temperature": temperature or None}, model_generation_config, use_cb=use_cb
        )
        if temperature is not None:
            config.do_sample = temperature > 0
        return config


class ChatHandler(RequestedSampling, ChatCompletionHandler):  # type: ignore[misc]
    """/v1/chat/completions."""

    _unused_fields = ChatCompletionHandler._unused_fields - {"max_completion_tokens"}


class TextHandler(RequestedSampling, CompletionHandler):  # type: ignore[misc]
    """/v1/completions."""


def load_models(options: argparse.Namespace) -> dict[str, tuple[NamedModel, Any]]:
    """Load the base once and every adapter onto it: served name to model and tokenizer."""
    folder, trust = Path(options.model), options.trust_remote_code
    base, tokenizer = load_for_inference(folder, device=options.device, dtype=options.dtype, trust_remote_code=trust)
    if options.chat_template:
        tokenizer.chat_template = Path(options.chat_template).read_text(encoding="utf-8")
    adapters = {name: Path(path) for name, path in map(_name_and_path, options.lora_modules)}
    model, lock = _with_adapters(base, folder, list(adapters.values())), threading.Lock()
    served = {options.served_model_name: (_named(model, None, base, tokenizer, lock, options), tokenizer)}
    for number, (name, path) in enumerate(adapters.items()):
        own = load_tokenizer(path, trust_remote_code=trust) if (path / TOKENIZER).is_file() else tokenizer
        config = GenerationConfig.from_pretrained(path) if (path / GENERATION_CONFIG).is_file() else None
        served[name] = (_named(model, _module_name(number), base, own, lock, options, config), own)
    return served


def _named(
    model: Any,
    adapter: str | None,
    base: Any,
    tokenizer: Any,
    lock: threading.Lock,
    options: argparse.Namespace,
    config: Any = None,
) -> NamedModel:
    """A served name; it stops at its generation config's tokens and at the end of a turn in its chat template."""
    config = copy.deepcopy(base.generation_config) if config is None else config
    config.eos_token_id = stop_token_ids(config, tokenizer) or None
    return NamedModel(model, adapter, config, lock, options.max_model_len)


def _with_adapters(base: Any, path: Path, folders: list[Path]) -> Any:
    model = base
    for number, folder in enumerate(folders):
        model = put_on(model, folder, path, name=_module_name(number))
    return model.eval()


def _module_name(number: int) -> str:
    """PEFT makes the adapter's name a part of module names, where dots and slashes cannot stand."""
    return f"served_{number}"


def _name_and_path(text: str) -> tuple[str, str]:
    if text.startswith("{"):
        module = json.loads(text)
        return module["name"], module["path"]
    name, _, path = text.partition("=")
    return name, path


def build_app(models: dict[str, tuple[NamedModel, Any]], api_key: str | None) -> FastAPI:
    """The server's application for ``models``."""
    manager, state = NamedModels(models), GenerationState()
    app: FastAPI = build_server(
        manager,
        ChatHandler(manager, state),
        completion_handler=TextHandler(manager, state),
        response_handler=ResponseHandler(manager, state),
        transcription_handler=TranscriptionHandler(manager, state),
        generation_state=state,
    )
    if api_key:
        app.middleware("http")(_key_check(api_key))
    return app


def _key_check(api_key: str) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    async def check(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.url.path == "/health" or request.headers.get("authorization") == f"Bearer {api_key}":
            return await answer(request)
        return JSONResponse({"error": "A key is needed: Authorization: Bearer KEY"}, status_code=401)

    return check


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """The options that ``adaptft serve`` passes; they are named as vLLM's are."""
    parser = argparse.ArgumentParser(prog="adaptft.serving.transformers_server")
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--lora-modules", nargs="*", default=[])
    parser.add_argument("--chat-template")
    parser.add_argument("--trust-remote-code", action="store_true")
    return parser.parse_args(words)


def main() -> None:
    """Load, then serve until a signal; answers in progress are finished first."""
    options = parse_options()
    quiet_libraries()
    try:
        with tempfile.TemporaryDirectory() as folder, printing_to(Path(folder) / "loading.log"):
            models = load_models(options)
    except AdaptftError as error:
        sys.exit(f"{type(error).__name__}: {error.problem} {error.fix}")
    app = build_app(models, os.environ.get(KEY_VARIABLE))
    config = uvicorn.Config(app, host=options.host, port=options.port, log_level="warning")
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)  # one line a request, and none about uvicorn itself
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
