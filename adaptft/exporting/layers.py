"""Models larger than host memory: weights stay on disk, and a layer visits memory while it is needed.

compressed-tensors' disk cache reads and writes them; transformers, PEFT and llm-compressor then work on such a model as
on any other. Embeddings and head stay in memory: every token of an answer needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from adaptft.models.loading import load_weights
from adaptft.optional import check_installed

_INTEGERS = {"I8": "int8", "U8": "uint8", "I16": "int16", "I32": "int32", "I64": "int64"}


def check_possible() -> None:
    """Raise MissingPackage where compressed-tensors is not installed."""
    check_installed("compressed_tensors", purpose="Exporting a model that is larger than host memory")


def load_on_disk(path: Path, scratch: Path, *, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """The model in ``path`` with its layers left there; they compute in ``dtype``, whatever the file holds.

    Args:
        scratch: a folder for links and for weights that change; it is made, and has to outlive the model.

    Raises:
        MissingPackage: compressed-tensors is not installed.
        ModelError: config and weights do not belong together.
    """
    check_possible()
    from compressed_tensors.offload import from_accelerate

    scratch.mkdir(parents=True, exist_ok=True)
    with _no_random_integers():
        model = load_weights(
            path, dtype=dtype, device_map=_device_map(path, trust_remote_code), offload_folder=str(scratch),
            offload_buffers=True, use_safetensors=True, trust_remote_code=trust_remote_code, local_files_only=True,
        )  # fmt: skip
    from_accelerate(model)
    _as_stored(model)
    return model


@contextmanager
def in_memory(module: nn.Module) -> Iterator[nn.Module]:
    """``module``'s own weights as ordinary tensors for the block; where they lay on disk, they are written back."""
    cache = _disk_cache(module)
    if cache is None:
        yield module
        return
    from compressed_tensors.offload.module import offload_module, remove_module_offload

    remove_module_offload(module, onload_tensors=True)
    try:
        yield module
    finally:
        offload_module(module, cache.onload_device, "disk", offload_dir=str(cache.offload_dir))


@contextmanager
def unread() -> Iterator[None]:
    """Whoever goes through all parameters in the block sees those on disk as they wait there, on the meta device.

    torch remembers each parameter that it has passed, so one walk would hold the whole model in memory.
    """
    from compressed_tensors.offload.cache import DiskCache
    from compressed_tensors.utils import patch_attr

    with patch_attr(DiskCache, "items", lambda cache: cache.offloaded_values.items()):
        yield


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Every fp32 weight of a model that was loaded on disk in ``dtype``; tied ones stay tied."""
    from compressed_tensors.offload import disable_onloading

    done: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        weights: Any = module._parameters
        for name in list(weights):
            with disable_onloading():
                stored = weights[name]
            if stored is None or stored.dtype != torch.float32:
                continue
            if stored not in done:
                new = nn.Parameter(weights[name].detach().to(dtype), requires_grad=False)
                with disable_onloading():
                    del weights[name]
                weights[name] = new
                with disable_onloading():
                    done[stored] = weights[name]
            with disable_onloading():
                weights[name] = done[stored]


def save(model: Any, folder: Path, *, shard_size: str) -> None:
    """``save_pretrained``, a shard in memory at a time."""
    if not hasattr(model.save_pretrained, "_overridden"):  # llm-compressor's own does this
        from compressed_tensors.offload import to_accelerate

        to_accelerate(model)
    model.save_pretrained(folder, max_shard_size=shard_size)


def widen_by_layer(model: Any) -> None:
    """Compressed layers of a loaded checkpoint are widened for their own call only.

    compressed-tensors would widen the whole model at its first call, beside what it read.
    """
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.utils import get_direct_state_dict

    model.ct_decompress_hook.remove()
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None:
            continue

        def widen(layer: Any, _: Any, scheme: Any = scheme) -> None:
            compressor = BaseCompressor.get_value_from_registry(scheme.format.value)
            weight = compressor.decompress(get_direct_state_dict(layer), scheme)["weight"]
            layer.__dict__["weight"] = nn.Parameter(weight, requires_grad=False)  # goes before the stored one

        def drop(layer: Any, *_: Any) -> None:
            del layer.__dict__["weight"]

        module.register_forward_pre_hook(widen)
        module.register_forward_hook(drop)


def _disk_cache(module: nn.Module) -> Any:
    """The disk cache that holds ``module``'s weights, None for one in memory."""
    weights: Any = module._parameters
    return weights if getattr(weights, "offload_device", None) == "disk" else None


def _device_map(path: Path, trust_remote_code: bool) -> dict[str, str]:
    """Where each part of the model lies: the embeddings and the head in memory, the rest on disk."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return _places(skeleton, {skeleton.get_input_embeddings(), skeleton.get_output_embeddings()}, "")


def _places(module: nn.Module, kept: set[nn.Module], name: str) -> dict[str, str]:
    if module in kept:
        return {name: "cpu"}
    if kept.isdisjoint(module.modules()):
        return {name: "disk"}
    children = ((f"{name}.{child}".lstrip("."), part) for child, part in module.named_children())
    return {place: device for child, part in children for place, device in _places(part, kept, child).items()}


def _as_stored(model: nn.Module) -> None:
    """Weights on disk need no gradients, and integers are read in the type that the file has.

    A weight that is cast while it is read is no leaf: PEFT could not switch its gradient off. accelerate notes the
    skeleton's type, which is another one for zero points that are packed on disk.
    """
    from compressed_tensors.offload import disable_onloading
    from compressed_tensors.offload.cache import DiskCache

    with disable_onloading():
        caches = (cache for module in model.modules() if (cache := _disk_cache(module)) is not None)
        tensors = [tensor for cache in caches for tensor in cache.values() if tensor is not None]
    for tensor in tensors:
        tensor.requires_grad_(False)
        if tensor.is_floating_point():
            continue
        entry = DiskCache.index[tensor]
        with safe_open(entry["safetensors_file"], framework="pt") as file:
            entry["dtype"] = _INTEGERS[file.get_slice(entry["weight_name"]).get_dtype()]


@contextmanager
def _no_random_integers() -> Iterator[None]:
    """transformers (5.17) fills what lies on disk with random numbers on the meta device; integers have none."""
    from compressed_tensors.utils import patch_attr
    from transformers import initialization

    original = initialization.normal_

    def normal(tensor: torch.Tensor, *args: Any, **settings: Any) -> torch.Tensor:
        return original(tensor, *args, **settings) if tensor.is_floating_point() else tensor  # type: ignore[no-any-return]

    with patch_attr(initialization, "normal_", normal):
        yield
