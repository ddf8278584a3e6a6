"""Adapter folders as facts, and what base and adapters share in one server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from adapters_factory import random_adapter

from adaptft.errors import ModelError, RequestError
from adaptft.models import read_config
from adaptft.models.adapter_shapes import check_shapes, read_adapter
from adaptft.models.stopping import named_stop_ids
from adaptft.serving.companions import common_template, stop_token_folder
from adaptft.serving.targets import parse_adapters
from adaptft.shapes import model_shape


@pytest.fixture(scope="module")
def adapter(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "mine"
    return random_adapter(tiny_qwen2, folder, r=8, rank_pattern={"layers.0.self_attn.q_proj": 48})


def changed(adapter: Path, folder: Path, **changes: object) -> Path:
    shutil.copytree(adapter, folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_an_adapter_is_read_with_the_largest_rank_of_any_layer(adapter: Path, tiny_qwen2: Path) -> None:
    read = read_adapter("a", adapter)
    assert (read.rank, read.max_rank) == (8, 48)
    assert read.layer_shapes["k_proj"] == (256, 128)
    assert read.layer_shapes["down_proj"] == (512, 256)
    assert read.eos_token_ids == named_stop_ids(tiny_qwen2)
    assert read.special_features == ()
    assert read.chat_template == str(adapter / "chat_template.jinja")
    check_shapes(read, model_shape(read_config(str(tiny_qwen2)), "tiny"))


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules trained whole (modules_to_save)"),
        ({"bias": "all"}, "trained biases"),
        ({"init_lora_weights": "pissa_niter_16"}, "the initialisation pissa_niter_16"),
    ],
)
def test_what_goes_beyond_plain_lora_is_named(adapter: Path, tmp_path: Path, changes, feature) -> None:
    assert read_adapter("a", changed(adapter, tmp_path / "a", **changes)).special_features == (feature,)


def test_an_adapter_of_another_model_is_refused_naming_both_shapes(adapter: Path, tiny_moe: Path, tmp_path) -> None:
    config = read_config(str(tiny_moe)) | {"model_type": "qwen2", "hidden_size": 320, "head_dim": None}
    with pytest.raises(ModelError, match="belongs to another model: its ") as refusal:
        check_shapes(read_adapter("a", adapter), model_shape(config, "other"))
    assert "256" in refusal.value.problem
    assert "320" in refusal.value.problem
    assert refusal.value.fix == "Take its own base: tiny-qwen2"


def test_broken_adapter_folders_are_refused(adapter: Path, tmp_path: Path, tiny_qwen2: Path) -> None:
    with pytest.raises(ModelError, match="holds no adapter"):
        read_adapter("a", tiny_qwen2)
    with pytest.raises(ModelError, match="of type IA3; only LoRA"):
        read_adapter("a", changed(adapter, tmp_path / "ia3", peft_type="IA3"))
    cut = changed(adapter, tmp_path / "cut")
    (cut / "adapter_model.safetensors").write_bytes((adapter / "adapter_model.safetensors").read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"Cannot read .*safetensors"):
        read_adapter("a", cut)
    (cut / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no adapter_model\.safetensors"):
        read_adapter("a", cut)


def test_adapters_are_named_or_take_their_folders_name(tmp_path: Path) -> None:
    equals = tmp_path / "lr=1"
    equals.mkdir()
    assert parse_adapters(("a=out/x", "out/run-1/", str(equals))) == {
        "a": Path("out/x"),
        "run-1": Path("out/run-1/"),
        "lr=1": equals,
    }
    with pytest.raises(RequestError, match="Two adapters are called x"):
        parse_adapters(("x=out/1", "out/x"))
    with pytest.raises(RequestError, match="is no NAME=DIR"):
        parse_adapters(("=out/1",))


class TestStopTokens:
    @pytest.fixture
    def base(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
        return self.folder(tmp_path / "base", 2)

    def folder(self, path: Path, eos: object) -> Path:
        path.mkdir()
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos, "max_new_tokens": 2048}))
        return path

    def adapter(self, source: Path, folder: Path, eos: object):
        shutil.copytree(source, folder)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
        return read_adapter(folder.name, folder)

    def test_the_bases_own_are_enough(self, base: Path, adapter: Path, tmp_path: Path) -> None:
        assert stop_token_folder(base, ()) is None
        assert stop_token_folder(base, [self.adapter(adapter, tmp_path / "a", 2)]) is None

    def test_an_adapters_file_that_holds_all_is_taken(self, base: Path, adapter: Path, tmp_path: Path) -> None:
        adapters = [self.adapter(adapter, tmp_path / "a", 2), self.adapter(adapter, tmp_path / "b", [2, 7])]
        assert stop_token_folder(base, adapters) == str(tmp_path / "b")

    def test_otherwise_they_are_joined_beside_the_bases_other_fields(self, base, adapter, tmp_path) -> None:
        adapters = [self.adapter(adapter, tmp_path / "a", [5, 2]), self.adapter(adapter, tmp_path / "b", 7)]
        joined = stop_token_folder(base, adapters)
        assert joined is not None
        assert json.loads((Path(joined) / "generation_config.json").read_text()) == {
            "eos_token_id": [2, 5, 7],
            "max_new_tokens": 2048,
        }
        assert stop_token_folder(base, adapters) == joined


def test_a_template_is_passed_on_only_where_it_is_not_the_bases(adapter: Path, tiny_qwen2: Path, tmp_path) -> None:
    same = read_adapter("same", adapter)
    assert common_template(tiny_qwen2, [same]) == (None, ())
    other_folder = changed(adapter, tmp_path / "other")
    (other_folder / "chat_template.jinja").write_text("{{ messages }}")
    other = read_adapter("other", other_folder)
    assert common_template(tiny_qwen2, [other]) == (str(other_folder / "chat_template.jinja"), ())
    template, (note,) = common_template(tiny_qwen2, [same, other])
    assert template == str(other_folder / "chat_template.jinja")
    assert note == "The chat template of other is used for all; trained with another one: same."


@pytest.mark.parametrize("is_list", [False, True], ids=["a text", "several by name"])
def test_a_template_that_stands_in_an_adapters_tokenizer_config_is_passed_on_too(
    adapter: Path, tiny_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_list: bool
) -> None:
    """As PEFT and older transformers leave it; vLLM would take the base's without a word."""
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    folder = tmp_path / "inline"
    shutil.copytree(adapter, folder)
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    text = "{{ messages }}"
    named = [{"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": text}]
    settings["chat_template"] = named if is_list else text
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    file, notes = common_template(tiny_qwen2, [read_adapter("a", folder)])
    assert file is not None
    assert Path(file).read_text() == text
    assert notes == ()
