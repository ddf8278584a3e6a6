"""benchmarks/widen.py: the wider model computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-qwen3"])
def test_a_model_that_is_twice_as_wide_has_the_same_logits(family, tiny_model, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from widen import widen

    widen(tiny_model(family), tmp_path, 2)
    narrow, wide = (AutoModelForCausalLM.from_pretrained(path) for path in (tiny_model(family), tmp_path))
    assert wide.config.hidden_size == 2 * narrow.config.hidden_size
    tokens = torch.arange(10, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(wide(tokens).logits, narrow(tokens).logits, rtol=1e-4, atol=1e-4)
