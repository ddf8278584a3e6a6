"""Loading a model to use it: base, adapter on a base, or an export, on one device."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptft import optional, quiet
from adaptft.errors import ModelError
from adaptft.models.adapting import first_line, put_on
from adaptft.models.folders import check_folder, read_folder_config
from adaptft.models.tokenizers import load_tokenizer
from adaptft.plans import DTYPE_NAMES

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NAMES: dict[str, str] = {str(short): name for short, name in DTYPE_NAMES.items()}
_MISMATCH = "ignore_mismatched_sizes"
_NAMES_SHOWN = 3
_BELONG_TOGETHER = "Check that config.json and the weights belong together, or copy the model again."
_QUANTIZERS = {"compressed-tensors": "compressed_tensors", "bitsandbytes": "bitsandbytes"}  # method -> module


def load_for_inference(
    path: Path, *, adapters: Path | None = None, device: str, dtype: str, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in ``path`` in evaluation mode, with ``adapters`` unmerged on it, and its tokenizer.

    Args:
        adapters: a PEFT adapter folder; its tokenizer and generation config go before the base's.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: ``float32``, ``bf16`` ...; quantised weights stay as they are and compute in it.

    Raises:
        ModelError: the folder is not complete, or the adapter is not made for this model.
        MissingPackage: the checkpoint's form needs a package that is not installed.
    """
    import torch

    check_folder(path)
    _require_quantizer(path)
    model = load_weights(
        path,
        dtype=getattr(torch, _NAMES.get(dtype, dtype)),
        device_map={"": device} if device != "cpu" else None,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
    )
    if adapters is not None:
        model = _with_adapters(model, path, adapters)
    tokenizer = load_tokenizer(_tokenizer_folder(path, adapters), trust_remote_code=trust_remote_code)
    return model.eval(), tokenizer


def load_weights(path: Path, **settings: Any) -> Any:
    """transformers' causal language model in ``path``, without its bars, with its errors in words.

    transformers fills weights that a checkpoint lacks with random numbers, and only warns; here that is an error.

    Raises:
        ModelError: config and weights do not belong together, or transformers cannot load them so.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with quiet.no_bars():
            model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **settings)
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError) as cause:
        why = "its weights have other shapes than config.json says" if _MISMATCH in str(cause) else first_line(cause)
        raise ModelError(
            f"Cannot load the model in {path}: {why}.",
            fix=_BELONG_TOGETHER,
        ) from cause
    _check_complete(path, info["missing_keys"])
    return model


def _check_complete(path: Path, missing: Collection[str]) -> None:
    """A head tied to the embeddings is not missing: transformers does not report it."""
    if missing:
        names = sorted(missing)
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        raise ModelError(
            f"The checkpoint in {path} lacks weights that config.json asks for: "
            f"{', '.join(names[:_NAMES_SHOWN])}{more}.",
            fix=_BELONG_TOGETHER,
        )


def _require_quantizer(path: Path) -> None:
    settings = read_folder_config(path).get("quantization_config") or {}
    module = _QUANTIZERS.get(settings.get("quant_method", ""))
    if module is not None:
        optional.require(module, purpose=f"A model in {settings['quant_method']} form")


def _with_adapters(model: PreTrainedModel, path: Path, adapters: Path) -> Any:
    if not (adapters / "adapter_config.json").is_file():
        raise ModelError(
            f"{adapters} is no adapter folder: it has no adapter_config.json.",
            fix="Name the result folder of a lora or qlora run; a full model goes to --model.",
        )
    adapted = put_on(model, adapters, path)
    if (adapters / "generation_config.json").is_file():
        from transformers import GenerationConfig

        adapted.generation_config = adapted.base_model.model.generation_config = GenerationConfig.from_pretrained(
            adapters
        )
    return adapted


def _tokenizer_folder(path: Path, adapters: Path | None) -> Path:
    return adapters if adapters is not None and (adapters / "tokenizer_config.json").is_file() else path
