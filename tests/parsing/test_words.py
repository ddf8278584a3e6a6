"""Words, numbers and their neighbours: strategies, types, ranges."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_requests import from_options, from_yaml

from adaptft.errors import RequestError
from adaptft.parsing.fields import option_fields
from adaptft.parsing.ranges import RANGES
from adaptft.requests import EvalRequest, ExportRequest, InferRequest, ServeRequest, TrainRequest

NEVER = ["no", "No", "NO", "off", "Off", "false", "False", "'no'", '"off"', "never", "none"]
FIELDS = option_fields(TrainRequest)
NUMBERS = [n for n, f in FIELDS.items() if f.kind in ("int", "float")]
CHOICES = [(n, word) for n, f in FIELDS.items() if f.kind == "word" for word in f.words]


@pytest.mark.parametrize("name", ["eval_strategy", "save_strategy"])
@pytest.mark.parametrize("word", NEVER)
def test_no_and_off_mean_never_for_every_strategy(tmp_path, name, word):
    for parsed in (from_yaml(tmp_path, f"{name}: {word}\n"), from_options(**{name: word})):
        assert getattr(parsed.request, name) == "no"
        assert name in parsed.given


@pytest.mark.parametrize("name", ["eval_strategy", "save_strategy"])
def test_a_python_false_means_never_and_a_true_is_refused(name):
    assert getattr(from_options(**{name: False}).request, name) == "no"
    with pytest.raises(RequestError, match="true is not a choice") as caught:
        from_options(**{name: True})
    assert "steps, epoch or no" in caught.value.fix


@pytest.mark.parametrize(("name", "word"), CHOICES)
def test_every_choice_is_read_in_any_case_and_with_dashes(name, word):
    for spelling in (word, word.upper(), word.title(), word.replace("_", "-"), f" {word} ", f"'{word}'"):
        assert str(getattr(from_options(**{name: spelling}).request, name)) == word


@pytest.mark.parametrize("name", [n for n, f in FIELDS.items() if f.kind == "word"])
def test_a_word_that_is_no_choice_is_refused_with_all_that_are(name):
    with pytest.raises(RequestError) as caught:
        from_options(**{name: "xyzzy"})
    assert f"--{name} xyzzy" in caught.value.problem
    assert all(word in caught.value.fix for word in FIELDS[name].words)


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("torch_dtype", "bf16", "bfloat16"),
        ("torch_dtype", "torch.bfloat16", "bfloat16"),
        ("torch_dtype", "FP16", "float16"),
        ("torch_dtype", "fp32", "float32"),
        ("torch_dtype", "auto", None),
        ("attn_impl", "flash_attention_2", None),
        ("attn_impl", "auto", None),
        ("optim", "adamw_torch_fused", "adamw"),
        ("optim", "adamw_bnb_8bit", "adamw_8bit"),
        ("hub", "ModelScope", "modelscope"),
        ("device", "gpu", "cuda"),
        ("quant_bits", "none", None),
        ("resume_from_checkpoint", "true", "auto"),
        ("resume_from_checkpoint", "auto", "auto"),
        ("resume_from_checkpoint", "false", None),
        ("resume_from_checkpoint", "out/checkpoint-3", "out/checkpoint-3"),
        ("max_steps", "-1", None),
        ("max_steps", "1e3", 1000),
        ("max_steps", "100.0", 100),
        ("seed", "007", 7),
        ("learning_rate", "1e-4", 1e-4),
        ("learning_rate", "2E-05", 2e-5),
        ("learning_rate", ".0001", 1e-4),
        ("learning_rate", "auto", None),
        ("lora_alpha", "32", 32.0),
        ("split_dataset_ratio", "0", 0.0),
        ("save_total_limit", "none", None),
        ("save_total_limit", "auto", 2),
        ("revision", "1.10", "1.10"),
        ("revision", "1234e56", "1234e56"),
        ("system", "none", "none"),
        ("system", "no", "no"),
        ("model", "0123", "0123"),
    ],
)
def test_spellings_from_yaml_and_from_options(tmp_path, name, word, value):
    text = f"{name}: {word}\n" if name == "model" else f"model: m\n{name}: {word}\n"
    options = {"model": "0123"} if name == "model" else {}
    assert getattr(from_yaml(tmp_path, text, **options).request, name) == value
    assert getattr(from_options(**{name: word}).request, name) == value


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "word", ["true", "x", "2k", "5%", "0,1", "nan", "inf", "-inf", "0x10", "1_", "", "[1, 2]", "1e999"]
)
def test_what_is_not_a_number_is_refused_for_every_number(tmp_path, name, word):
    with pytest.raises(RequestError) as caught:
        from_yaml(tmp_path, f"{name}: '{word}'\n")
    assert name in caught.value.problem
    assert "recipe.yaml, line 1" in caught.value.problem


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_outside_their_range_are_refused_and_the_ends_are_read(name):
    allowed, whole = RANGES[name], FIELDS[name].kind == "int"
    step = 1 if whole else 1e-3
    for end, is_open, outside in ((allowed.low, allowed.low_open, -step), (allowed.high, allowed.high_open, step)):
        if math.isinf(end):
            continue
        if not is_open:
            assert getattr(from_options(**{name: int(end) if whole else end}).request, name) == end
        beyond = end if is_open else end + outside
        if name == "max_steps" and beyond == -1:
            continue
        with pytest.raises(RequestError, match="out of range") as caught:
            from_options(**{name: int(beyond) if whole else beyond})
        assert name in caught.value.fix


@pytest.mark.parametrize("name", [n for n, f in FIELDS.items() if f.kind == "int"])
def test_a_part_of_a_whole_number_is_refused(name):
    with pytest.raises(RequestError, match="not a whole number"):
        from_options(**{name: "1.5"})


@pytest.mark.parametrize("kind", [TrainRequest, EvalRequest, ExportRequest, ServeRequest, InferRequest])
def test_every_number_of_every_request_has_a_range(kind):
    numbers = {n for n, f in option_fields(kind).items() if f.kind in ("int", "float")}
    assert numbers <= RANGES.keys()


@settings(max_examples=200, deadline=None)
@given(st.floats(min_value=1e-12, max_value=1.0))
def test_any_learning_rate_survives_its_own_text(rate):
    assert from_options(learning_rate=repr(rate)).request.learning_rate == rate


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12), st.sampled_from(sorted(FIELDS)))
def test_any_text_for_any_field_is_read_or_refused_in_two_lines(text, name):
    try:
        given = from_options(**{name: text}).given
    except RequestError as error:
        given = frozenset(str(error).split("\n")[:1]) if str(error).count("\n") == 1 else frozenset()
    assert given
