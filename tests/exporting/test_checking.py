"""What a folder's files prove."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from adaptft.exporting.checking import count_files


def test_compressed_layers_are_counted_over_all_shards(tmp_path: Path) -> None:
    packed = {
        "a.q_proj.weight_packed": torch.zeros(8, 16, dtype=torch.int32),  # 8 x 128 weights of 4 bits
        "a.q_proj.weight_scale": torch.zeros(8, 4, dtype=torch.bfloat16),
        "a.q_proj.weight_shape": torch.zeros(2, dtype=torch.int64),
        "embed_tokens.weight": torch.zeros(50, 8, dtype=torch.bfloat16),
    }
    floats = {
        "b.k_proj.weight": torch.zeros(8, 32, dtype=torch.float8_e4m3fn),
        "b.k_proj.weight_scale": torch.zeros(8, 1, dtype=torch.bfloat16),
        "b.k_proj.bias": torch.zeros(8, dtype=torch.bfloat16),
    }
    save_file(packed, tmp_path / "model-00001-of-00002.safetensors")
    save_file(floats, tmp_path / "model-00002-of-00002.safetensors")
    found = count_files(tmp_path)
    assert found.compressed_modules == {"a.q_proj", "b.k_proj"}
    bits = 8 * 128 * 4 + 32 * 16 + 2 * 64 + 8 * 32 * 8 + 8 * 16
    assert found.bits_per_weight == pytest.approx(bits / (8 * 128 + 8 * 32))
    assert found.num_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_plain_checkpoint_has_16_bits(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(4, 4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    found = count_files(tmp_path)
    assert (len(found.compressed_modules), found.bits_per_weight) == (0, 16)
