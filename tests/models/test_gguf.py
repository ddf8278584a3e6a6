"""GGUF files become Hugging Face folders with the same logits and the same tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf
from models_factory import TEMPLATES

from adaptft.errors import ModelError, OutputError
from adaptft.models import end_of_turn_ids, load_for_inference, load_tokenizer, locate, read_config, storage
from adaptft.shapes import model_shape

pytest.importorskip("gguf")

TEXT = (TEMPLATES / "corpus.txt").read_text(encoding="utf-8")[-4000:] + (
    "  In 2024, prices rose 3.5% to $1,234.56!\n\n\tdef f(x):\n        return x**2  # don't\r\n"
    "naïve cafe\u0301 ﬁn Ⅷ ١٢٣ 今天3点 <|im_start|>user\nHi<|im_end|>\n<think>\n</think>"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("name", ["tiny_qwen2", "tiny_llama"])
def test_logits_tokens_template_and_stop_are_those_of_the_source(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import torch

    source = request.getfixturevalue(name)
    found = locate(str(write_gguf(source, tmp_path / "tiny.gguf")))
    wanted, wanted_tokenizer = load_for_inference(source, device="cpu", dtype="float32")
    model, tokenizer = load_for_inference(found.path, device="cpu", dtype="float32")
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    assert ids.tolist() == wanted_tokenizer(TEXT, return_tensors="pt").input_ids.tolist()
    with torch.no_grad():
        assert torch.equal(model(ids[:, :256]).logits, wanted(ids[:, :256]).logits)
    assert tokenizer.chat_template == wanted_tokenizer.chat_template
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert model.generation_config.eos_token_id in end_of_turn_ids(tokenizer)


def test_the_config_is_in_the_published_form(tiny_qwen2: Path, tmp_path: Path) -> None:
    file = write_gguf(tiny_qwen2, tmp_path / "tiny.gguf")
    published = json.loads((tiny_qwen2 / "config.json").read_text())
    shape = model_shape(published, "tiny")
    assert model_shape(read_config(str(file)), "tiny") == shape
    config = json.loads((locate(str(file)).path / "config.json").read_text())
    assert model_shape(config, "tiny") == shape
    for key in ("rope_theta", "rms_norm_eps", "torch_dtype", "architectures", "bos_token_id", "eos_token_id"):
        assert config[key] == published[key], key


def test_of_tied_tables_the_embedding_is_stored_as_published_models_do(tiny_qwen2: Path, tmp_path: Path) -> None:
    """vLLM skips a tied head in the file: with only the head stored it would serve an embedding never loaded."""
    from safetensors import safe_open

    folder = locate(str(write_gguf(tiny_qwen2, tmp_path / "tiny.gguf"))).path
    with safe_open(folder / "model.safetensors", framework="numpy") as weights:
        names = set(weights.keys())
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_a_second_look_takes_the_folder_that_is_there(tiny_qwen2: Path, tmp_path: Path, home: Path) -> None:
    file = write_gguf(tiny_qwen2, tmp_path / "tiny.gguf")
    first = locate(str(file)).path
    time = (first / "config.json").stat().st_mtime_ns
    assert locate(str(file)).path == first
    assert (first / "config.json").stat().st_mtime_ns == time
    assert [path.name for path in (home / "models").iterdir()] == [first.name]


def test_a_beginning_of_text_token_is_put_first_where_the_file_says_so(tiny_qwen2: Path, tmp_path: Path) -> None:
    file = write_gguf(tiny_qwen2, tmp_path / "tiny.gguf", add_bos_token=True)
    tokenizer = load_tokenizer(locate(str(file)).path)
    assert tokenizer("Hello").input_ids[0] == tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert len(tokenizer("Hello", add_special_tokens=False).input_ids) == len(tokenizer("Hello").input_ids) - 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": "llama"}, "its tokenizer is of kind llama"),
        ({"pre": "never-heard-of"}, "its way to cut text is never-heard-of"),
    ],
)
def test_a_tokenizer_that_cannot_be_rebuilt_is_refused_before_any_work(
    fields: dict[str, Any], problem: str, tiny_qwen2: Path, tmp_path: Path, home: Path
) -> None:
    file = write_gguf(tiny_qwen2, tmp_path / "tiny.gguf", **fields)
    with pytest.raises(ModelError, match=problem):
        locate(str(file))
    assert not home.exists()


def test_scaled_positions_are_not_lost_in_silence(tiny_llama: Path, tmp_path: Path, home: Path) -> None:
    import gguf

    file = write_gguf(tiny_llama, tmp_path / "tiny.gguf", scaling=gguf.RopeScalingType.YARN)
    with pytest.raises(ModelError, match="scales its positions"):
        locate(str(file))
    assert list((home / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("broken.gguf", b"GGUF\x03\x00", "not a GGUF file that can be read"),
        ("model-00001-of-00002.gguf", b"GGUF", "one part of a GGUF"),
        ("weights.bin", b"\x80\x02", "a file, but no GGUF"),
    ],
)
def test_files_that_are_no_model(name: str, content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=problem):
        locate(str(tmp_path / name))


def test_a_full_disk_is_said_before_and_nothing_is_left(tmp_path: Path, home: Path) -> None:
    needed = shutil.disk_usage(tmp_path).free + 2**40
    with (
        pytest.raises(OutputError, match="free; the model needs"),
        storage.whole_folder(home / "m", needed_bytes=needed),
    ):
        pytest.fail("must not be entered")
    assert list(home.iterdir()) == []


def test_a_conversion_that_fails_leaves_nothing(home: Path) -> None:
    def fail() -> None:
        with storage.whole_folder(home / "m", needed_bytes=0) as folder:
            (folder / "half").write_text("made")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(home.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_two_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputError) as caught, storage.whole_folder(tmp_path / "file" / "m", needed_bytes=0):
        pytest.fail("must not be entered")
    assert "ADAPTFT_HOME" in caught.value.fix


def test_the_real_smollm2_cuts_digits_one_by_one_and_stops(smollm2: Path) -> None:
    model, tokenizer = load_for_inference(smollm2, device="cpu", dtype="float32")
    assert [tokenizer.decode(i) for i in tokenizer("x = 2024").input_ids] == ["x", " =", " ", "2", "0", "2", "4"]
    question = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1].item() in end_of_turn_ids(tokenizer)
