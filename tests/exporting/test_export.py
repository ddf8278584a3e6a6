"""Exports of tiny models in every format: loaded back, counted, measured, and quiet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters_factory import artifact_of, random_adapter
from exports import export_here
from transformers import AutoModelForCausalLM

from adaptft.artifacts import read_artifact, write_artifact
from adaptft.exporting.checking import read_header
from adaptft.exporting.merging import load_merged

CALIBRATION = {"quant_n_samples": 4, "max_length": 64}
IDS = torch.arange(100, 148)[None]
RANDOM = {"accept_loss": True}
"""Random weights are sure of nothing: the likeliest token of two changes at the slightest rounding."""

# format: options, bits a weight, how far the loss may be from the source's, and the logits (relative norm; random
# weights have no outliers and no redundancy: four bits cost them a quarter)
FORMATS: dict[str, tuple[dict[str, int], float, float, float]] = {
    "merged": ({}, 16.0, 0.002, 0.01),
    "fp8": ({}, 8.06, 0.05, 0.1),
    "fp8-block": ({}, 8.0, 0.05, 0.1),
    "int8": ({}, 8.06, 0.05, 0.1),
    "awq": (CALIBRATION, 4.16, 0.1, 0.4),
    "gptq": (CALIBRATION, 4.13, 0.1, 0.5),  # 0.38 to 0.43 measured, by the number of threads
}


@pytest.fixture(scope="module")
def adapter(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llmcompressor")
    return random_adapter(tiny_qwen2, tmp_path_factory.mktemp("run") / "adapter", scale=0.03)


@pytest.mark.parametrize("format", FORMATS)
def test_an_adapter_in_every_format(
    format: str, adapter: Path, tiny_qwen2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options, bits, bound, logits_bound = FORMATS[format]
    plan, report, folder = export_here(
        format=format, adapters=str(adapter), output_dir=str(tmp_path / "out"), **options, **RANDOM
    )
    assert capfd.readouterr() == ("", ""), "what the libraries print stays in the log"
    assert list(tmp_path.iterdir()) == [folder], "nothing else is left"

    assert report.num_quantized_modules == plan.num_compressed_modules == (0 if format == "merged" else 28)
    assert report.num_linear_modules == 29
    assert report.bits_per_weight == pytest.approx(bits, abs=0.02)
    assert report.exported_bytes == pytest.approx(plan.predicted_bytes, rel=0.01)
    measured = report.gate.fidelity
    assert set(report.gate.failures) <= {"same top token"}
    assert measured.loss == pytest.approx(measured.source_loss, abs=bound)
    assert report.merge is not None
    assert report.merge.parity.divergence < 1e-6
    assert len(report.gate.answers) == 3

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    merged = load_merged(tiny_qwen2, adapter, dtype="fp32")
    with torch.no_grad():
        logits, wanted = model(IDS).logits, merged(IDS).logits
    error = (logits - wanted).norm() / wanted.norm()
    assert error < logits_bound
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_folder_is_complete_and_says_where_it_came_from(adapter: Path, tiny_qwen2: Path, tmp_path: Path) -> None:
    _, report, folder = export_here(format="fp8", adapters=str(adapter), output_dir=str(tmp_path / "out"), **RANDOM)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (tiny_qwen2 / name).read_bytes(), f"{name} is a copy"
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert config["torch_dtype"] == "bfloat16"
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert config["quantization_config"]["ignore"] == ["lm_head"]
    assert 2050 in json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    gate = json.loads((folder / "report.json").read_text())["gate"]
    assert gate["fidelity"]["loss"] == report.gate.fidelity.loss
    assert [line["measure"] for line in gate["lines"]] == [line.measure for line in report.gate.lines]
    assert json.loads((folder / "plan.json").read_text())["format"] == "fp8"
    artifact = read_artifact(folder)
    assert artifact is not None
    assert (artifact.kind, artifact.format, artifact.base_path) == ("export", "fp8", str(tiny_qwen2))
    card = (folder / "README.md").read_text()
    assert "28 of 29 linear layers" in card
    assert "| compressed layers |  | 28 | exactly 28 |" in card
    assert card.count("- asked: ") == 3
    assert "vllm serve" in card
    assert "lm_head.weight" not in read_header(folder / "model.safetensors")
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


def test_a_head_trained_whole_is_kept_beside_the_embedding(tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    options: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    adapter = random_adapter(tiny_qwen2, tmp_path / "run", **options)
    _, report, folder = export_here(format="fp8", adapters=str(adapter), **RANDOM)
    assert "lm_head.weight" in read_header(folder / "model.safetensors")
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    assert report.gate.fidelity.divergence < 0.05


def test_calibration_rows_are_the_training_rows(adapter: Path, tiny_qwen2: Path, tmp_path: Path) -> None:
    rows = [{"query": f"What is {i} plus {i}?", "response": f"{i} plus {i} is {2 * i}."} for i in range(40)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    random_adapter(tiny_qwen2, run)
    write_artifact(run, artifact_of(tiny_qwen2, dataset=(str(data),)))
    _, report, folder = export_here(format="gptq", adapters=str(run), **CALIBRATION, **RANDOM)
    assert folder.name == "run-gptq"
    assert report.calibration == f"4 rows of at most 64 tokens from the training data ({data})"
    assert not [note for note in report.notes if "--accept-loss" not in note]


def test_training_rows_that_are_gone_are_replaced_and_it_is_said(tiny_qwen2: Path, tmp_path: Path) -> None:
    run = random_adapter(tiny_qwen2, tmp_path / "run")
    write_artifact(run, artifact_of(tiny_qwen2, dataset=(str(tmp_path / "gone.jsonl"),)))
    _, report, _ = export_here(format="merged", adapters=str(run))
    assert "gone.jsonl" in report.notes[0]
    assert "built-in rows" in report.notes[0]


@pytest.fixture(scope="module")
def shared_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers 1 and 3 of six route to 12 experts and one shared expert with a gate of one output."""
    import models_factory

    pytest.importorskip("llmcompressor")
    departures: dict[str, Any] = {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_hidden_layers": 6,
        "num_experts": 12, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 256,
        "decoder_sparse_step": 2, "mlp_only_layers": [5], "tie_word_embeddings": False, "head_dim": 64,
    }  # fmt: skip
    return models_factory.build("tiny-moe", tmp_path_factory.mktemp("moe") / "model", **departures)


@pytest.mark.parametrize(("format", "options"), [("fp8", {}), ("awq", CALIBRATION)])
def test_experts_are_compressed_and_what_routes_stays_in_16_bit(
    format: str, options: dict[str, int], shared_experts: Path, tmp_path: Path
) -> None:
    plan, report, folder = export_here(
        format=format, model=str(shared_experts), output_dir=str(tmp_path / "out"), **options, **RANDOM
    )
    assert report.num_quantized_modules == plan.num_compressed_modules == 24 + 12 + 6 + 72
    assert report.exported_bytes == pytest.approx(plan.predicted_bytes, rel=0.02)
    header = read_header(folder / "model.safetensors")
    ignored = json.loads((folder / "config.json").read_text())["quantization_config"]["ignore"]
    for layer in (1, 3):
        for gate in ("gate", "shared_expert_gate"):
            assert header[f"model.layers.{layer}.mlp.{gate}.weight"]["dtype"] == "BF16"
            assert f"model.layers.{layer}.mlp.{gate}" in ignored
    assert report.gate.fidelity.loss == pytest.approx(report.gate.fidelity.source_loss, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["fp8", pytest.param("gptq", marks=pytest.mark.long)])
def test_the_real_model_passes_the_gate(format: str, smollm2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    plan, report, _ = export_here(
        format=format,
        model=str(smollm2),
        output_dir=str(tmp_path / "out"),
        quant_n_samples=8 * (format == "gptq") or None,
    )
    assert plan.group_size == (64 if format == "gptq" else None)
    assert report.num_quantized_modules == 210
    assert report.exported_bytes == pytest.approx(plan.predicted_bytes, rel=0.01)
    assert report.gate.failures == ()
