"""A QLoRA adapter goes into the base that is nearer to the model it was trained as; training's own rows are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exports import export_here

from adaptft.artifacts import read_artifact
from adaptft.cli import main

TRAIN = ("--max_steps", "2", "--max_length", "512", "--global_batch_size", "2", "--learning_rate", "1e-3")


def trained(base: Path, folder: Path, method: str, *more: str) -> Path:
    words = ["train", "--model", base, "--train_type", method, "--output_dir", folder, *TRAIN, *more]
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert not end.value.code
    return folder


def test_the_nearer_base_is_kept_and_both_are_reported(tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    run = trained(tiny_qwen2, tmp_path / "run", "qlora")
    _, report, folder = export_here(format="merged", adapters=str(run))
    merge = report.merge
    assert merge is not None
    assert merge.rejected_parity is not None
    assert merge.base == "dequantised", "two steps teach an adapter nothing that would make up for the rounding"
    assert merge.parity.divergence < 1e-4 < merge.rejected_parity.divergence
    assert report.gate.failures == ()
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert "into the dequantised base" in (folder / "README.md").read_text()


def test_rows_that_training_held_out_are_compared_on_and_the_others_calibrate(tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    run = trained(tiny_qwen2, tmp_path / "run", "lora", "--split_dataset_ratio", "0.1")
    artifact = read_artifact(run)
    assert artifact is not None
    assert artifact.dataset[0].endswith("gsm8k_train.jsonl"), "the built-in rows are data like any other"
    _, report, _ = export_here(
        format="gptq", adapters=str(run), quant_n_samples=4, max_length=64, accept_loss=True
    )  # fmt: skip
    assert report.calibration == "4 rows of at most 64 tokens from the training data (the built-in rows)"
    assert report.gate.rows.endswith("the training data (the built-in rows), held out from training")
