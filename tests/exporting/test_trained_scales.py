"""An adapter trained beside an FP8 base goes out in FP8 on the grid that it was trained on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from exports import export_here
from safetensors.torch import load_file
from test_qlora import trained

from adaptft.kernels.quantize import quantize_rows


def test_rows_that_still_fit_keep_the_scales_of_training(tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    run = trained(tiny_qwen2, tmp_path / "run", "lora")
    plan = json.loads((run / "plan.json").read_text())
    plan["decisions"]["method"]["value"]["base_storage"] = "fp8"  # as on a Hopper GPU
    (run / "plan.json").write_text(json.dumps(plan))
    options = {"adapters": str(run), "format": "fp8", "accept_loss": True}
    _, report, folder = export_here(output_dir=str(tmp_path / "trained"), **options)
    note = next(note for note in report.notes if "FP8 scales that training computed with" in note)
    kept, total = map(int, re.findall(r"\d+", note)[:2])

    base, export = (load_file(place / "model.safetensors") for place in (tiny_qwen2, folder))
    layers = [name.removesuffix(".weight_scale") for name in export if name.endswith(".weight_scale")]
    scales = {name: quantize_rows(base[f"{name}.weight"]).scale.to(torch.bfloat16) for name in layers}
    equal = sum(int((export[f"{name}.weight_scale"] == scale).sum()) for name, scale in scales.items())
    assert total == sum(scale.numel() for scale in scales.values())
    assert total > equal >= kept > 0.3 * total, "a row whose largest weight grew takes a scale of its own"
    assert report.gate.fidelity.divergence < 0.02


def test_other_adapters_take_new_scales(tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    run = trained(tiny_qwen2, tmp_path / "run", "lora")
    _, report, _ = export_here(adapters=str(run), format="fp8", accept_loss=True)
    assert not [note for note in report.notes if "FP8 scales" in note]
