"""The transformers engine: an OpenAI server for one model and its adapters; run as a module.

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
import threading
from pathlib import Path
from typing import Any

import uvicorn
from transformers import GenerationConfig

from adaptft import quiet
from adaptft.errors import AdaptftError
from adaptft.models import load_for_inference, load_tokenizer
from adaptft.models.adapting import put_on
from adaptft.models.stopping import stop_token_ids
from adaptft.serving.named_models import NamedModel
from adaptft.serving.openai_app import build_app

KEY_VARIABLE = "ADAPTFT_API_KEY"
TOKENIZER, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"


def load_models(options: argparse.Namespace) -> dict[str, NamedModel]:
    """Load the base once and every adapter onto it: served name to model."""
    folder, trust = Path(options.model), options.trust_remote_code
    base, tokenizer = load_for_inference(folder, device=options.device, dtype=options.dtype, trust_remote_code=trust)
    if options.chat_template:
        tokenizer.chat_template = Path(options.chat_template).read_text(encoding="utf-8")
    adapters = {name: Path(path) for name, path in map(_name_and_path, options.lora_modules)}
    model, lock = _with_adapters(base, folder, list(adapters.values())), threading.Lock()
    served = {options.served_model_name: _named(model, None, base, tokenizer, lock, options)}
    for number, (name, path) in enumerate(adapters.items()):
        own = load_tokenizer(path, trust_remote_code=trust) if (path / TOKENIZER).is_file() else tokenizer
        config = GenerationConfig.from_pretrained(path) if (path / GENERATION_CONFIG).is_file() else None
        served[name] = _named(model, _module_name(number), base, own, lock, options, config)
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
    return NamedModel(
        model=model,
        tokenizer=tokenizer,
        adapter=adapter,
        generation_config=config,
        lock=lock,
        max_model_len=options.max_model_len,
    )


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
    quiet.advertisements()
    try:
        models = load_models(options)
    except AdaptftError as error:
        sys.exit(f"{type(error).__name__}: {error.problem} {error.fix}")
    app = build_app(models, os.environ.get(KEY_VARIABLE))
    config = uvicorn.Config(app, host=options.host, port=options.port, log_level="info")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # requests are logged, its start and end are not
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
