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
import json
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.transcription import TranscriptionHandler
from transformers.cli.serving.utils import GenerationState

KEY_VARIABLE = "ADAPTFT_API_KEY"


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
        with self._lock:
            if self._adapter is not None:
                self._model.set_adapter(self._adapter)
                return self._model.generate(generation_config=generation_config, input_ids=input_ids, **inputs)
            if not hasattr(self._model, "disable_adapter"):
                return self._model.generate(generation_config=generation_config, input_ids=input_ids, **inputs)
            with self._model.disable_adapter():
                return self._model.generate(generation_config=generation_config, input_ids=input_ids, **inputs)


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


class ChatHandler(ChatCompletionHandler):  # type: ignore[misc]
    """Chat requests, with the two parameters that are dropped silently otherwise."""

    def _build_generation_config(self, body: dict[str, Any], model_generation_config: Any, use_cb: bool = False) -> Any:
        if body.get("max_completion_tokens") is not None:
            body = body | {"max_tokens": body["max_completion_tokens"]}
        config = super()._build_generation_config(body, model_generation_config, use_cb=use_cb)
        if body.get("temperature"):
            config.do_sample = True
        return config


def load_models(options: argparse.Namespace) -> dict[str, tuple[NamedModel, Any]]:
    """Load the base once and every adapter onto it: served name to model and tokenizer."""
    base = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=options.dtype, device_map=options.device, trust_remote_code=options.trust_remote_code
    )
    base.eval()
    adapters = dict(_name_and_path(text) for text in options.lora_modules)
    model = _with_adapters(base, adapters)
    template = Path(options.chat_template).read_text(encoding="utf-8") if options.chat_template else None
    lock = threading.Lock()
    served = {}
    for name, folder in {options.served_model_name: options.model, **adapters}.items():
        tokenizer = _tokenizer(folder, options, template)
        config = _generation_config(folder, base)
        adapter = _module_name(list(adapters).index(name)) if name in adapters else None
        served[name] = (NamedModel(model, adapter, config, lock, options.max_model_len), tokenizer)
    return served


def _with_adapters(base: Any, adapters: dict[str, str]) -> Any:
    if not adapters:
        return base
    from peft import PeftModel

    first, *others = adapters.values()
    model = PeftModel.from_pretrained(base, first, adapter_name=_module_name(0))
    for number, folder in enumerate(others, start=1):
        model.load_adapter(folder, adapter_name=_module_name(number))
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


def _tokenizer(folder: str, options: argparse.Namespace, template: str | None) -> Any:
    source = folder if (Path(folder) / "tokenizer_config.json").exists() else options.model
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=options.trust_remote_code)
    if template is not None and source == options.model:
        tokenizer.chat_template = template
    return tokenizer


def _generation_config(folder: str, base: Any) -> Any:
    """Of the adapter's folder where it has one: its stop tokens belong to its training."""
    if (Path(folder) / "generation_config.json").exists():
        return GenerationConfig.from_pretrained(folder)
    return base.generation_config


def build_app(models: dict[str, tuple[NamedModel, Any]], api_key: str | None) -> FastAPI:
    """The server's application for ``models``."""
    manager, state = NamedModels(models), GenerationState()
    app: FastAPI = build_server(
        manager,
        ChatHandler(manager, state),
        completion_handler=CompletionHandler(manager, state),
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
    app = build_app(load_models(options), os.environ.get(KEY_VARIABLE))
    config = uvicorn.Config(app, host=options.host, port=options.port, log_level="info")
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
