"""An endpoint is held against training: other tokens and other answers are errors that show the first difference."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from adapters_factory import artifact_of, random_adapter
from local_servers import in_a_thread

from adaptft import data
from adaptft.artifacts import write_artifact
from adaptft.errors import ServeError
from adaptft.facts import Cpu, HostMemory, Machine, Software
from adaptft.models import load_tokenizer
from adaptft.plans import ServePlan
from adaptft.requests import ServeRequest
from adaptft.serving import check_endpoint, plan_endpoint
from adaptft.serving.checking import first_difference
from adaptft.serving.client import post
from adaptft.serving.openai_app import build_app
from adaptft.serving.transformers_server import load_models, parse_options
from adaptft.units import GiB

HERE = Machine(
    gpus=(),
    cpu=Cpu(model_name="a CPU", architecture="x86_64", logical_cores=2, physical_cores=2, usable_cores=2),
    memory=HostMemory(total_bytes=16 * GiB, available_bytes=12 * GiB),
    software=Software(python="3.11"),
)


@contextmanager
def served(folder: Path, *more: str, api_key: str | None = None) -> Iterator[str]:
    """adaptft's own server over ``folder`` under the name m, in a thread."""
    words = ["--model", folder, "--served-model-name", "m", "--device", "cpu", "--dtype", "float32"]
    options = parse_options([str(word) for word in (*words, "--max-model-len", "1024", *more)])
    with in_a_thread(build_app(load_models(options), api_key)) as url:
        yield url


def plan_of(model: Path, **options: object) -> ServePlan:
    request = ServeRequest(model=str(model), served_model_name="m", infer_backend="transformers", **options)  # type: ignore[arg-type]
    return plan_endpoint(request, HERE, must_start=False)


def sharpen(folder: Path, *, turned: bool = False) -> None:
    """Make the model sure of what it says, or (``turned``) of something else: random weights know only near ties."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = "model.norm.weight"
    signs = torch.ones_like(weights[name])
    signs[::2] = -1 if turned else 1
    save_file(weights | {name: weights[name] * 300 * signs}, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def result(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model as a training of ours leaves it, on eight rows of its own."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    shutil.copytree(tiny_qwen2, folder)
    sharpen(folder)
    rows = folder.with_name("rows.jsonl")
    asked = [{"query": f"Say {word}.", "response": word} for word in ("red", "blue", "green", "black")]
    rows.write_text("".join(json.dumps(row) + "\n" for row in asked))
    write_artifact(folder, artifact_of(tiny_qwen2, kind="model", dataset=(str(rows),)))
    data.write_rendering(folder, load_tokenizer(folder))
    return folder


def test_a_result_that_is_served_as_it_was_trained_passes(result: Path) -> None:
    with served(result, api_key="secret") as url:
        (checked,) = check_endpoint(url, plan_of(result), api_key="secret")
        assert (checked.name, checked.num_rows, checked.num_answers, checked.num_ties) == ("m", 4, 3, 0)
        with pytest.raises(ServeError, match="401") as refusal:
            check_endpoint(url, plan_of(result), api_key="wrong")
        assert "--api_key" in refusal.value.fix


def test_another_template_shows_the_first_differing_token(result: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jinja"
    template = (result / "chat_template.jinja").read_text()
    other.write_text(template.replace("<|im_start|>assistant", "<|im_start|>user"))
    assert other.read_text() != template
    with served(result, "--chat-template", str(other)) as url, pytest.raises(ServeError) as refusal:
        check_endpoint(url, plan_of(result), api_key=None)
    assert "served with other tokens than it was trained on: in a question, token " in refusal.value.problem
    assert len(str(refusal.value).splitlines()) == 2


def test_a_template_changed_in_the_folder_itself_is_found_by_what_training_recorded(
    result: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(result, changed)
    template = (changed / "chat_template.jinja").read_text()
    (changed / "chat_template.jinja").write_text(template.replace("<|im_start|>assistant", "<|im_start|>user"))
    with served(changed) as url, pytest.raises(ServeError, match="other tokens than it was trained on"):
        check_endpoint(url, plan_of(changed), api_key=None)


def test_another_model_under_the_name_answers_otherwise(result: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(result, other)
    sharpen(other, turned=True)
    with served(other) as url, pytest.raises(ServeError, match="otherwise than the model does") as refusal:
        check_endpoint(url, plan_of(result), api_key=None)
    assert "the first difference is" in refusal.value.problem
    assert len(str(refusal.value).splitlines()) == 2


def test_adapters_are_checked_under_their_own_names(tiny_qwen2: Path, tmp_path: Path) -> None:
    adapter = random_adapter(tiny_qwen2, tmp_path / "mine")
    with served(tiny_qwen2, "--lora-modules", f"mine={adapter}") as url:
        plan = plan_of(tiny_qwen2, adapters=(f"mine={adapter}",))
        (checked,) = check_endpoint(url, plan, api_key=None)
        assert (checked.name, checked.rows) == ("mine", "the built-in rows")
        tokens = post(f"{url.removesuffix('/v1')}/tokenize", {"model": "mine", "prompt": "a b"}, api_key=None)
        assert tokens["tokens"] == load_tokenizer(tiny_qwen2)("a b")["input_ids"]
        assert tokens["count"] == len(tokens["tokens"])


@pytest.mark.parametrize(
    ("wanted", "found", "place"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [5], 0), ([1], [1, 2], 1)],
)
def test_the_first_difference(wanted: list[int], found: list[int], place: int | None) -> None:
    assert first_difference(wanted, found) == place
