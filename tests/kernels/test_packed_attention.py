"""The variable-length kernel as transformers sees it; what it computes is tested on a GPU."""

from __future__ import annotations

import pytest
import torch

from adaptft.kernels.packed_attention import register


@pytest.mark.parametrize("make", ["create_causal_mask", "create_sliding_window_causal_mask"])
def test_transformers_makes_no_mask_and_reads_no_position(make):
    """Positions on torch's meta device cannot be read, and reading them on a GPU means waiting for it."""
    from transformers import Qwen2Config, masking_utils

    config = Qwen2Config(sliding_window=64, attn_implementation=register())
    hidden, positions = torch.empty(2, 128, 32, device="meta"), torch.empty(2, 128, dtype=torch.int64, device="meta")
    mask = getattr(masking_utils, make)(
        config=config, inputs_embeds=hidden, attention_mask=None, past_key_values=None, position_ids=positions
    )
    assert mask is None
