"""An export as whoever serves it loads it, in as much memory as the plan has."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaptft import quiet
from adaptft.evaluation import loaded
from adaptft.exporting.layers import load_on_disk, widen_by_layer
from adaptft.exporting.merging import torch_dtype
from adaptft.models.loading import load_weights
from adaptft.plans import ExportPlan
from adaptft.policy.devices import Device
from adaptft.policy.format_table import FORMATS


@contextmanager
def loaded_back(plan: ExportPlan, folder: Path, device: Device) -> Iterator[Any]:
    """The export in ``folder``, in memory for the block alone.

    Raises:
        ModelError: transformers cannot load it.
    """
    is_compressed, trust = FORMATS[plan.format].is_compressed, plan.request.trust_remote_code
    is_whole = device == "cuda" or plan.residence == "twice" or (plan.residence == "once" and not is_compressed)
    if is_whole:
        with loaded(folder, device=device, dtype=plan.compute_dtype, trust_remote_code=trust) as model:
            yield model
        return
    with tempfile.TemporaryDirectory(prefix="loaded-", dir=folder.parent) as scratch:
        model = _load(plan, folder, Path(scratch))
        if is_compressed:
            widen_by_layer(model)
        with quiet.no_bars():
            yield model.eval()
        del model
        gc.collect()


def _load(plan: ExportPlan, folder: Path, scratch: Path) -> Any:
    dtype, trust = torch_dtype(plan.compute_dtype), plan.request.trust_remote_code
    if plan.residence == "by_layer":
        return load_on_disk(folder, scratch, dtype=dtype, trust_remote_code=trust)
    return load_weights(folder, dtype=dtype, use_safetensors=True, trust_remote_code=trust, local_files_only=True)
