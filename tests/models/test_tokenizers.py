"""Tokenizers as they are loaded, and the files that go beside a result."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from models_factory import END_OF_TEXT, IM_END, TEMPLATES, change_json

from adaptft.errors import ModelError
from adaptft.models import end_of_turn_ids, load_tokenizer, save_companions


@pytest.fixture
def base(tiny_qwen2: Path, tmp_path: Path) -> Path:
    """tiny-qwen2 dressed as a base model: everything but the chat template ends with <|endoftext|>."""
    folder = Path(shutil.copytree(tiny_qwen2, tmp_path / "base"))
    change_json(folder / "config.json", eos_token_id=END_OF_TEXT)
    change_json(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    change_json(
        folder / "generation_config.json", eos_token_id=END_OF_TEXT, max_new_tokens=2048, temperature=0.7, top_p=None
    )
    return folder


def _with_template(folder: Path, template: str) -> Any:
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return load_tokenizer(folder)


@pytest.mark.parametrize("name", ["tiny_qwen2", "tiny_qwen3", "tiny_llama"])
def test_the_end_of_a_turn_is_found_by_rendering(name: str, request: pytest.FixtureRequest) -> None:
    assert end_of_turn_ids(load_tokenizer(request.getfixturevalue(name))) == (IM_END,)


@pytest.mark.parametrize(
    ("template", "ids"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}", (END_OF_TEXT,)),
        ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}", (END_OF_TEXT + 1,)),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", ()),
        ("{% for m in messages %}{{ m.content }} \n<|im_end|><|endoftext|>{% endfor %}", (IM_END,)),
    ],
    ids=["a closing token", "closed by the next turn's opening", "plain text", "the first of two"],
)
def test_templates_that_end_turns_otherwise(template: str, ids: tuple[int, ...], base: Path) -> None:
    assert end_of_turn_ids(_with_template(base, template)) == ids


def test_a_tokenizer_without_a_template_has_no_end_of_turn(base: Path) -> None:
    (base / "chat_template.jinja").unlink()
    assert end_of_turn_ids(load_tokenizer(base)) == ()


def test_a_template_that_cannot_be_rendered_is_a_two_line_error(base: Path) -> None:
    with pytest.raises(ModelError, match="cannot be rendered"):
        end_of_turn_ids(_with_template(base, "{{ raise_exception('no') }}"))


def test_a_missing_padding_token_is_filled_in(base: Path) -> None:
    change_json(base / "tokenizer_config.json", pad_token=None)
    assert load_tokenizer(base).pad_token == "<|endoftext|>"


def test_a_folder_without_tokenizer_is_a_two_line_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_is_a_two_line_error(base: Path) -> None:
    (base / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="Cannot load the tokenizer"):
        load_tokenizer(base)


def test_the_warning_about_mistrals_regex_does_not_come_for_others(
    base: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = data["model"]["vocab"]
    for index in range(120_000):  # transformers looks at vocabularies over 100,000 only
        vocabulary[f"filler{index}"] = 10_000 + index
    (base / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("transformers"), "level", logging.WARNING)
    logging.getLogger("transformers").manager._clear_cache()
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(base)
    assert "fix_mistral_regex" in caplog.text  # the reason for the flag: without it, the warning comes
    caplog.clear()
    plain = load_tokenizer(base)
    assert "regex" not in caplog.text
    text = (TEMPLATES / "corpus.txt").read_text(encoding="utf-8")[:3000]
    assert plain(text).input_ids == AutoTokenizer.from_pretrained(base)(text).input_ids


def test_the_templates_end_of_turn_joins_the_stop_tokens(base: Path, tmp_path: Path) -> None:
    notes = save_companions(base, tmp_path / "result")
    assert notes == (f"added {IM_END} <|im_end|> to eos_token_id because the chat template ends turns with it",)
    settings = json.loads((tmp_path / "result" / "generation_config.json").read_text())
    assert settings["eos_token_id"] == [END_OF_TEXT, IM_END]
    before = json.loads((base / "generation_config.json").read_text())
    assert {**settings, "eos_token_id": END_OF_TEXT} == before


def test_stop_tokens_that_are_complete_stay_and_nothing_is_said(tiny_qwen2: Path, tmp_path: Path) -> None:
    assert save_companions(tiny_qwen2, tmp_path) == ()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / name).read_bytes() == (tiny_qwen2 / name).read_bytes(), name
    assert not (tmp_path / "config.json").exists()


def test_a_model_without_generation_config_gets_one_from_its_config(base: Path, tmp_path: Path) -> None:
    (base / "generation_config.json").unlink()
    save_companions(base, tmp_path / "result")
    settings = json.loads((tmp_path / "result" / "generation_config.json").read_text())
    assert settings == {"bos_token_id": END_OF_TEXT, "eos_token_id": [END_OF_TEXT, IM_END]}


def test_given_stop_tokens_are_taken_in_place_of_the_templates(base: Path, tmp_path: Path) -> None:
    save_companions(base, tmp_path / "result", extra_eos=(5,))
    assert json.loads((tmp_path / "result" / "generation_config.json").read_text())["eos_token_id"] == [END_OF_TEXT, 5]


def test_a_template_inside_tokenizer_config_gets_its_own_file_too(base: Path, tmp_path: Path) -> None:
    template = (base / "chat_template.jinja").read_text(encoding="utf-8")
    (base / "chat_template.jinja").unlink()
    change_json(base / "tokenizer_config.json", chat_template=template)
    save_companions(base, tmp_path / "result")
    assert (tmp_path / "result" / "chat_template.jinja").read_text(encoding="utf-8") == template


def test_a_folder_may_be_completed_in_place(base: Path) -> None:
    save_companions(base, base)
    assert json.loads((base / "generation_config.json").read_text())["eos_token_id"] == [END_OF_TEXT, IM_END]
