"""Words of a command line: what belongs to which option."""

import pytest

from adaptft.cli.arguments import split_arguments
from adaptft.errors import RequestError
from adaptft.parsing import parse_request
from adaptft.requests import ServeRequest, TrainRequest

OWN = ["--json", "--machine", "--help", "-h"]


def split(line, kind=TrainRequest, recipe=True):
    found = split_arguments(kind, line.split(), own=OWN, recipe=recipe)
    return found.options, found.rest


@pytest.mark.parametrize(
    ("line", "options", "rest"),
    [
        ("--lora_rank 8", {"lora_rank": "8"}, []),
        ("--lora-rank=8", {"lora_rank": "8"}, []),
        ("--lora_r 8", {"lora_r": "8"}, []),
        ("--lora_rank 8 --lora_rank 16", {"lora_rank": "16"}, []),
        ("--max_steps -1", {"max_steps": "-1"}, []),
        ("--packing", {"packing": "true"}, []),
        ("--packing --json", {"packing": "true"}, ["--json"]),
        ("--packing false", {"packing": "false"}, []),
        ("--packing=no", {"packing": "no"}, []),
        ("--packing False recipe.yaml", {"packing": "False"}, ["recipe.yaml"]),
        ("--packing recipe.yaml", {"packing": "true"}, ["recipe.yaml"]),
        ("--packing maybe", {"packing": "maybe"}, []),
        ("--load_in_4bit", {"load_in_4bit": "true"}, []),
        ("--bf16 --fp16 false", {"bf16": "true", "fp16": "false"}, []),
        ("--dataset a b c", {"dataset": ["a", "b", "c"]}, []),
        ("--dataset a b recipe.yaml --json", {"dataset": ["a", "b"]}, ["recipe.yaml", "--json"]),
        ("--dataset a --dataset=b", {"dataset": ["a", "b"]}, []),
        ("--dataset=a b.yaml", {"dataset": ["a"]}, ["b.yaml"]),
        ("recipe.yaml --machine m.json", {}, ["recipe.yaml", "--machine", "m.json"]),
        ("--system=--quiet", {"system": "--quiet"}, []),
        ("-- --packing", {}, ["--packing"]),
    ],
)
def test_words_go_where_they_belong(line, options, rest):
    assert split(line) == (options, rest)


def test_where_a_word_may_be_a_model_only_a_yes_or_no_is_a_switchs_value():
    assert split("--trust_remote_code org/model", ServeRequest, recipe=False) == (
        {"trust_remote_code": "true"},
        ["org/model"],
    )
    assert split("--trust_remote_code no org/model", ServeRequest, recipe=False) == (
        {"trust_remote_code": "no"},
        ["org/model"],
    )


@pytest.mark.parametrize("line", ["--lora_rank", "--lora_rank --json", "--dataset", "--dataset --packing"])
def test_an_option_without_its_value_is_refused(line):
    with pytest.raises(RequestError, match="has no value"):
        split(line)


@pytest.mark.parametrize(
    ("line", "nearest"), [("--lora_rnk 8", "--lora_rank"), ("--jsn", "--json"), ("--mashine x", "--machine")]
)
def test_an_unknown_option_names_the_nearest(line, nearest):
    found, _ = split(line)
    with pytest.raises(RequestError, match="is not a known option") as caught:
        parse_request(TrainRequest, found, also=["--json", "--machine"])
    assert caught.value.fix == f"Did you mean {nearest}?"
