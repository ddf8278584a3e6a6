"""The catalogue's facts give the parameter counts that the models were published with."""

from __future__ import annotations

import pytest

from adaptft.models import catalog
from adaptft.shapes import model_shape

# alias -> parameters of the published checkpoint, tied weights counted once
PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen-7b": 7_615_616_512,
    "qwen-14b": 14_770_033_664,
    "qwen-32b": 32_763_876_352,
    "qwen-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "deepseek-r1-distill-qwen-7b": 7_615_616_512,
    "deepseek-r1-distill-qwen-14b": 14_770_033_664,
    "deepseek-r1-distill-qwen-32b": 32_763_876_352,
    "deepseek-r1-distill-llama-8b": 8_030_261_248,
    "deepseek-r1-distill-llama-70b": 70_553_706_496,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
}


@pytest.mark.parametrize(("alias", "count"), PUBLISHED.items())
def test_the_catalogue_gives_the_published_parameter_count(alias: str, count: int) -> None:
    entry = catalog.find(alias)
    assert entry is not None
    assert model_shape(entry.config, alias).num_parameters == count


def test_every_alias_is_in_this_table() -> None:
    assert set(catalog.aliases()) == set(PUBLISHED)


def test_a_mixture_counts_what_one_token_passes_through() -> None:
    entry = catalog.find("qwen3-30b-a3b")
    assert entry is not None
    shape = model_shape(entry.config, "qwen3-30b-a3b")
    assert 3.3e9 < shape.num_active_parameters < 3.4e9  # its name says 3 billion, its card 3.3


@pytest.mark.parametrize("written", ["Qwen-7B", "QWEN2.5-7B", "Qwen/Qwen2.5-7B-Instruct", "qwen/qwen2.5-7b-instruct"])
def test_names_are_found_in_any_case(written: str) -> None:
    entry = catalog.find(written)
    assert entry is not None
    assert entry.huggingface_id == "Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(
    ("written", "meant"), [("qwen7b", "qwen-7b"), ("lama3-8b", "llama3-8b"), ("smolm2-135m", "smollm2-135m")]
)
def test_a_mistyped_alias_has_a_nearest_one(written: str, meant: str) -> None:
    assert catalog.find(written) is None
    assert catalog.nearest(written) == meant


def test_nothing_is_near_a_text_that_is_no_name() -> None:
    assert catalog.nearest("zzzz") is None
