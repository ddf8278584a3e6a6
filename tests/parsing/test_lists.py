"""Lists in every form in which people write them."""

import pytest
from reading_requests import from_options, from_yaml

from adaptft.errors import RequestError
from adaptft.parsing.fields import option_fields
from adaptft.requests import TrainRequest

LISTS = [name for name, field in option_fields(TrainRequest).items() if field.kind == "list"]
WORDS = {"report_to": ("tensorboard", "wandb")}

QV = ("q_proj", "v_proj")
ALL = ("all-linear",)
REGEX = r".*layers\.(0|1)\.self_attn\.(q|v)_proj"


def two_words(name):
    return WORDS.get(name, ("org/one", "org/two") if "dataset" in name else QV)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    "form",
    ["[{0}, {1}]", "['{0}', \"{1}\"]", '\'["{0}", "{1}"]\'', "'{0},{1}'", "{0}, {1}", "{0} {1}", "\n- {0}\n- '{1}'"],
    ids=["flow", "quoted flow", "json text", "comma", "comma blank", "blank", "block"],
)
def test_every_list_reads_every_form_from_yaml(tmp_path, name, form):
    words = two_words(name)
    assert getattr(from_yaml(tmp_path, f"{name}: {form.format(*words)}\n").request, name) == words


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: [a, b],
        lambda a, b: (a, b),
        lambda a, b: f"{a},{b}",
        lambda a, b: f"{a} {b}",
        lambda a, b: [f"{a},{b}"],
        lambda a, b: f'["{a}", "{b}"]',
        lambda a, b: [f"['{a}', '{b}']"],
    ],
)
def test_every_list_reads_every_form_from_options(name, make):
    words = two_words(name)
    assert getattr(from_options(**{name: make(*words)}).request, name) == words


@pytest.mark.parametrize("name", LISTS)
def test_an_empty_word_or_a_mapping_is_refused_in_every_list(tmp_path, name):
    for value in ("''", "['']", "[[a]]", "[a, {b: c}]", "{b: c}"):
        with pytest.raises(RequestError, match=r"recipe\.yaml, line 1"):
            from_yaml(tmp_path, f"{name}: {value}\n")


@pytest.mark.parametrize(
    ("value", "modules"),
    [
        ("q_proj", ("q_proj",)),
        ("q_proj,v_proj", QV),
        ("q_proj v_proj", QV),
        ('["q_proj", "v_proj"]', QV),
        ("all-linear", ALL),
        ("all", ALL),
        ("all_linear", ALL),
        ("ALL-LINEAR", ALL),
        (REGEX, (REGEX,)),
        (r".*\.\d{1,2}\.q_proj", (r".*\.\d{1,2}\.q_proj",)),
        ("layers.3.mlp.down_proj", ("layers.3.mlp.down_proj",)),
        (["all-linear"], ALL),
        (["q_proj", "lm_head"], ("q_proj", "lm_head")),
    ],
)
@pytest.mark.parametrize("key", ["target_modules", "lora_target", "lora_target_modules"])
def test_target_modules_in_every_form_and_under_every_name(key, value, modules):
    assert from_options(**{key: value}).request.target_modules == modules


@pytest.mark.parametrize("value", ["", "   ", [], [""]])
def test_target_modules_that_name_nothing_are_refused(value):
    with pytest.raises(RequestError, match="names no"):
        from_options(target_modules=value)


@pytest.mark.parametrize("word", ["none", "None", "no", "off", "false", [], "[]"])
def test_report_to_none_is_an_empty_list_that_the_user_set(word):
    parsed = from_options(report_to=word)
    assert parsed.request.report_to == ()
    assert "report_to" in parsed.given


def test_a_reporter_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(RequestError, match="tensorbord") as caught:
        from_options(report_to="tensorbord")
    assert "Did you mean tensorboard?" in caught.value.fix


def test_an_existing_file_with_a_comma_and_a_blank_stays_one_dataset(tmp_path):
    file = tmp_path / "my data, cleaned.jsonl"
    file.touch()
    assert from_options(dataset=str(file)).request.dataset == (str(file),)


def test_a_missing_file_with_a_blank_stays_one_dataset():
    assert from_options(dataset="my data.jsonl").request.dataset == ("my data.jsonl",)


def test_no_data_at_all_is_refused():
    with pytest.raises(RequestError, match="names no data"):
        from_options(dataset=[])
