"""Switches as people write them, for every boolean field and from both sources."""

from pathlib import Path

import pytest
from reading_requests import from_options, from_yaml

from adaptft.errors import RequestError
from adaptft.parsing import parse_request
from adaptft.parsing.fields import option_fields
from adaptft.requests import EvalRequest, ExportRequest, InferRequest, ServeRequest, TrainRequest

SWITCHES = [name for name, field in option_fields(TrainRequest).items() if field.kind == "bool"]
TRUE = ["true", "True", "TRUE", "yes", "Yes", "on", "ON", "1"]
FALSE = ["false", "False", "FALSE", "no", "No", "off", "OFF", "0"]
WORDS = [(word, True) for word in TRUE] + [(word, False) for word in FALSE]


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("word", "value"), WORDS)
@pytest.mark.parametrize("quote", ["", "'", '"'], ids=["plain", "single", "double"])
def test_every_switch_reads_every_word_in_yaml_quoted_or_not(tmp_path, name, word, value, quote):
    parsed = from_yaml(tmp_path, f"{name}: {quote}{word}{quote}\n")
    assert getattr(parsed.request, name) is value
    assert name in parsed.given


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("word", "value"), [*WORDS, (True, True), (False, False), (1, True), (0, False)])
def test_every_switch_reads_every_word_and_python_value_from_options(name, word, value):
    parsed = from_options(**{name: word})
    assert getattr(parsed.request, name) is value
    assert name in parsed.request.given


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("word", ["maybe", "2", "-1", "0.0", "tru", "", "[true, false]", "{a: true}"])
def test_another_word_is_refused_with_key_value_and_the_words_allowed(tmp_path, name, word):
    with pytest.raises(RequestError) as caught:
        from_yaml(tmp_path, f"lora_rank: 8\n{name}: {word or chr(34) * 2}\n")
    assert caught.value.problem.startswith(f"{name}: ")
    assert "recipe.yaml, line 2" in caught.value.problem
    if not word.startswith(("[", "{")):
        assert (word or '""') in caught.value.problem
        assert all(allowed in caught.value.fix for allowed in ("true", "false", "yes/no", "on/off", "1/0"))


@pytest.mark.parametrize("name", SWITCHES)
def test_an_explicit_false_on_the_command_line_beats_a_true_in_the_recipe(tmp_path, name):
    parsed = from_yaml(tmp_path, f"{name}: true\n", **{name: "false"})
    assert getattr(parsed.request, name) is False
    assert name in parsed.given


def test_an_explicit_false_beats_a_default_of_true(tmp_path):
    assert from_options(bnb_4bit_use_double_quant="no").request.bnb_4bit_use_double_quant is False
    assert from_yaml(tmp_path, "double_quantization: off\n").request.bnb_4bit_use_double_quant is False


def test_an_explicit_default_counts_as_set_by_the_user_and_silence_does_not():
    assert "use_dora" in from_options(use_dora="false").given
    assert "use_dora" not in from_options().given


@pytest.mark.parametrize("name", [n for n in SWITCHES if option_fields(TrainRequest)[n].optional])
@pytest.mark.parametrize("word", ["auto", "none", "null", "~", ""])
def test_auto_and_none_leave_a_switch_to_the_policy(tmp_path, name, word):
    parsed = from_yaml(tmp_path, f"{name}: {word}\n")
    assert getattr(parsed.request, name) is None
    assert name not in parsed.given


@pytest.mark.parametrize("kind", [EvalRequest, ExportRequest, ServeRequest, InferRequest])
def test_switches_of_the_other_requests_read_the_same_words(kind):
    required = {n: "merged" if n == "format" else "m" for n, f in option_fields(kind).items() if f.required}
    for name in [n for n, f in option_fields(kind).items() if f.kind == "bool"]:
        for word, value in WORDS:
            assert getattr(parse_request(kind, required | {name: word}).request, name) is value
        with pytest.raises(RequestError, match=f"--{name} maybe is neither true nor false"):
            parse_request(kind, required | {name: "maybe"})


def test_the_recipe_of_the_case_means_what_it_says(tmp_path):
    text = """\
train_type: lora
max_steps: 6
save_steps: 2
packing: "false"
use_rslora: 'no'
gradient_checkpointing: "True"
eval_strategy: no          # YAML 1.1 reads no and off as the boolean false
save_strategy: off
report_to: none
"""
    request = from_yaml(tmp_path, text).request
    assert (request.packing, request.use_rslora, request.gradient_checkpointing) == (False, False, True)
    assert (request.eval_strategy, request.save_strategy, request.report_to) == ("no", "no", ())
    assert set(request.given) >= {"packing", "use_rslora", "gradient_checkpointing", "eval_strategy", "save_strategy"}


def test_a_recipe_for_the_case_reads_the_same_from_the_command_line(tmp_path: Path):
    options = {"packing": "False", "use_rslora": "no", "eval_strategy": "no", "save_strategy": "off"}
    text = "".join(f"{key}: {value}\n" for key, value in options.items())
    assert from_options(**options) == from_yaml(tmp_path, text)
