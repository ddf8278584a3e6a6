"""FP8 exports whose weights are rounded for calibration rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from exports import CPU_MACHINE, export_here
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from adaptft.exporting.fitting import fit
from adaptft.exporting.rows import ExportRows
from adaptft.kernels.quantize import E4M3_MAX, quantize_rows
from adaptft.kernels.watching import Watched
from adaptft.models import read_config
from adaptft.policy.formats import plan_export
from adaptft.requests import ExportRequest
from adaptft.shapes import model_shape

ROWS = Dataset.from_dict({"input_ids": [[3 + (7 * i + j * j) % 200 for j in range(40)] for i in range(6)]})
OPTIONS: dict[str, Any] = {"quant_n_samples": 4, "max_length": 64}


def a_model(path: Path) -> Any:
    """With channels that are far from zero for every token, as trained models have them."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight[:, ::17] += 0.2
    return model


def plan_of(path: Path) -> Any:
    shape = model_shape(read_config(str(path)), "tiny")
    return plan_export(CPU_MACHINE, shape, ExportRequest(model=str(path), format="fp8", **OPTIONS))


def fitted(path: Path, trained: dict[str, torch.Tensor]) -> Any:
    model = a_model(path)
    fit(
        model,
        plan_of(path),
        ExportRows(calibration=ROWS, check=ROWS, source="", is_held_out=False, device="cpu"),
        trained,
    )
    return model


def linears(model: Any) -> dict[str, torch.nn.Linear]:
    return {n: m for n, m in model.model.named_modules() if isinstance(m, torch.nn.Linear)}


def test_what_is_rounded_for_the_rows_meets_them_with_less_error(tiny_llama: Path) -> None:
    plain, model = a_model(tiny_llama), fitted(tiny_llama, {})
    with Watched(linears(plain).values()) as watched, torch.no_grad():
        for row in ROWS:
            plain(input_ids=torch.tensor([row["input_ids"]]))
    inputs = watched.inputs(plain)
    for name, layer in linears(plain).items():
        weight, means = layer.weight.detach(), inputs[layer].mean
        nearest = quantize_rows(weight)
        errors = [
            ((rounded - weight) @ means).square().mean()
            for rounded in (nearest.values.float() * nearest.fp8_scale, linears(model)[name].weight.detach())
        ]
        assert errors[1] < 0.05 * errors[0], name


def test_who_quantises_the_rounded_weights_changes_nothing(tiny_llama: Path) -> None:
    """llm-compressor rounds to the nearest, by the largest weight of each row."""
    for name, layer in linears(fitted(tiny_llama, {})).items():
        again = quantize_rows(layer.weight.detach())
        assert torch.allclose(again.values.float() * again.fp8_scale, layer.weight, rtol=1e-5, atol=0), name


def test_scales_of_training_are_kept_where_rows_still_fit_them(tiny_llama: Path) -> None:
    weight = linears(a_model(tiny_llama))["layers.1.mlp.up_proj"].weight.detach()
    peaks = weight.abs().amax(dim=1, keepdim=True) * torch.where(torch.arange(len(weight)) % 2 == 0, 1.3, 0.7)[:, None]
    found = linears(fitted(tiny_llama, {"model.layers.1.mlp.up_proj": peaks}))["layers.1.mlp.up_proj"].weight.detach()
    steps = found / (peaks / E4M3_MAX)
    on_the_grid = (steps.to(torch.float8_e4m3fn).float() - steps).abs() < 1e-3 * steps.abs().clamp(min=1e-3)
    assert on_the_grid[::2].all()
    assert not on_the_grid[1::2].all(dim=1).any(), "rows that outgrew them have their own"


def test_an_export_says_which_rows_it_was_rounded_for(tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    by_rows, nearest = (
        export_here(model=str(tiny_qwen2), format="fp8", output_dir=str(tmp_path / name), accept_loss=True, **options)
        for name, options in (("rows", OPTIONS), ("nearest", {}))
    )
    assert by_rows[1].calibration.startswith("4 rows of at most 64 tokens from")
    assert nearest[1].calibration == "none needed"
    one, two = (load_file(folder / "model.safetensors") for _, _, folder in (by_rows, nearest))
    assert one.keys() == two.keys()
    moved = [name for name in one if one[name].dtype == torch.float8_e4m3fn and not torch.equal(
        one[name].view(torch.uint8), two[name].view(torch.uint8)
    )]  # fmt: skip
    assert len(moved) == 28
    scales = [name for name in one if name.endswith("weight_scale")]
    assert all(torch.allclose(one[name].float(), two[name].float(), rtol=0.01) for name in scales)
