"""How a checkpoint stores its weights, as its config.json says."""

from __future__ import annotations

from adaptft.shapes.fields import Fields


def stored_dtype(fields: Fields) -> str:
    """``bfloat16``, ``float16`` or ``float32``; float32, as in torch, where the file says nothing."""
    dtype = fields.get("dtype", fields.get("torch_dtype", "float32"))
    if not isinstance(dtype, str):
        raise fields.error(f"has dtype = {dtype!r}", "Name one type, such as bfloat16.")
    return dtype.removeprefix("torch.")


def quantization(fields: Fields) -> str | None:
    """The method of a quantised checkpoint (``awq``, ``gptq``, ``fp8``, ``compressed-tensors``, ``bitsandbytes``)."""
    settings = fields.get("quantization_config", fields.get("compression_config"))
    if settings is None:
        return None
    if not isinstance(settings, dict):
        raise fields.error("has a quantization_config that is no table", "Take the published config.json.")
    method = settings.get("quant_method")
    if method is None and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        return "bitsandbytes"
    return str(method).lower() if method else "unknown"
