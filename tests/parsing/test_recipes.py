"""Recipes that are not one, and what YAML does to values."""

import pytest
from reading_requests import from_yaml

from adaptft.errors import RequestError
from adaptft.parsing import parse_request
from adaptft.requests import TrainRequest


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lora_rank: 8\nlora_rank: 16\n", "lora_rank is there twice, on lines 1 and 2"),
        ("lora-rank: 8\nlora_rank: 16\n", "lora_rank is there twice, on lines 1 and 2"),
        ("- a\n- b\n", "is not a list of keys and values"),
        ("just text\n", "is not a list of keys and values"),
        ("lora_rank: [8\n", "cannot be read"),
        ("a: b: c\n", "line 1"),
        ("model: !!python/object/apply:os.getcwd []\n", "cannot be read"),
        ("seed: 1\n--- \nseed: 2\n", "cannot be read"),
        ("? [a, b]\n: 1\n", "cannot be read"),
    ],
)
def test_what_is_not_a_recipe_is_refused_in_two_lines(tmp_path, text, problem):
    with pytest.raises(RequestError) as caught:
        from_yaml(tmp_path, text)
    assert problem in caught.value.problem
    assert "\n" not in caught.value.problem
    assert caught.value.exit_code == 2


def test_a_recipe_that_is_missing_a_folder_or_not_text_is_refused(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"system: \xe9\n")
    for path, problem in (
        (tmp_path / "nope.yaml", "No such file"),
        (tmp_path, "directory"),
        (tmp_path / "latin.yaml", "UTF-8"),
    ):
        with pytest.raises(RequestError, match=problem):
            parse_request(TrainRequest, {"model": "m"}, path)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "{}\n"])
def test_an_empty_recipe_asks_for_nothing(tmp_path, text):
    assert from_yaml(tmp_path, text).given == {"model"}


def test_options_beat_the_recipe(tmp_path):
    parsed = from_yaml(tmp_path, "lora_rank: 8\nlora_alpha: 4\n", lora_r="32")
    assert (parsed.request.lora_rank, parsed.request.lora_alpha) == (32, 4.0)


def test_auto_on_the_command_line_takes_back_what_the_recipe_says(tmp_path):
    parsed = from_yaml(tmp_path, "learning_rate: 1e-3\n", learning_rate="auto")
    assert parsed.request.learning_rate is None
    assert "learning_rate" not in parsed.given


def test_a_key_without_a_value_is_unset_and_said_so_where_there_is_a_default(tmp_path):
    parsed = from_yaml(tmp_path, "eval_strategy:\nlora_rank:\nseed: ~\n")
    assert parsed.given == {"model"}
    assert parsed.notes == (
        "eval_strategy has no value: left at its default.",
        "seed has no value: left at its default.",
    )


def test_anchors_and_merge_keys_work(tmp_path):
    parsed = from_yaml(tmp_path, "<<: {lora_rank: 8, seed: 3}\nseed: 4\n")
    assert (parsed.request.lora_rank, parsed.request.seed) == (8, 4)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    (tmp_path / "bom.yaml").write_bytes("seed: 3\n".encode("utf-8-sig"))
    assert parse_request(TrainRequest, {"model": "m"}, tmp_path / "bom.yaml").request.seed == 3
