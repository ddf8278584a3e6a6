"""Answers and chats in the terminal, with tiny random models."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from adapters_factory import artifact_of, random_adapter

from adaptft.artifacts import write_artifact
from adaptft.errors import AdaptftError, MachineError, ModelError, RequestError
from adaptft.facts import Cpu, HostMemory, Machine, Software
from adaptft.inference import Speaker, answer, chat, load
from adaptft.requests import InferRequest

MACHINE = Machine(
    gpus=(),
    cpu=Cpu(model_name="cpu", architecture="x86_64", logical_cores=2, physical_cores=2, usable_cores=2.0),
    memory=HostMemory(total_bytes=8 << 30, available_bytes=6 << 30),
    software=Software(python="3.11"),
)


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> Speaker:
    return load(InferRequest(model=str(tiny_llama), max_new_tokens=12), MACHINE)


@pytest.fixture
def speaker(loaded: Speaker) -> Speaker:
    return replace(loaded, stop_ids=list(loaded.stop_ids))


def greedy(speaker: Speaker, text: str, count: int) -> list[int]:
    prompt = speaker.render([{"role": "user", "content": text}])
    with torch.inference_mode():
        said = speaker.model.generate(prompt, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return said[0, prompt.shape[-1] :].tolist()


def test_a_greedy_answer_is_what_the_model_generates_and_streams_in_pieces(speaker: Speaker) -> None:
    pieces: list[str] = []
    said = answer(speaker, "Say a word", write=pieces.append)
    assert said.text == speaker.tokenizer.decode(greedy(speaker, "Say a word", 12), skip_special_tokens=True)
    assert "".join(pieces) == said.text
    assert len(pieces) > 1
    assert (said.finish_reason, said.num_tokens) == ("length", 12)


def test_it_stops_at_every_token_that_ends_a_turn(speaker: Speaker) -> None:
    tokens = greedy(speaker, "Say a word", 12)
    end = next(i for i in range(2, 12) if tokens[i] not in tokens[:i])
    speaker.stop_ids = [tokens[end], *speaker.stop_ids]
    said = answer(speaker, "Say a word")
    assert (said.finish_reason, said.num_tokens) == ("stop", end + 1)


def test_a_base_whose_configs_name_another_end_stops_where_its_template_ends_turns(tiny_qwen2, tmp_path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny_qwen2, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2048}')
    speaker = load(InferRequest(model=str(folder)), MACHINE)
    end_of_turn = speaker.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert 2048 in speaker.stop_ids
    assert end_of_turn in speaker.stop_ids


def test_a_temperature_samples_and_the_seed_repeats_it(speaker: Speaker) -> None:
    def sample(seed: int) -> str:
        speaker.request = replace(speaker.request, temperature=5.0, seed=seed)
        return answer(speaker, "Say a word").text

    assert sample(1) == sample(1) != sample(2)


def test_ctrl_c_keeps_what_was_said(speaker: Speaker) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    said = answer(speaker, "Say a word", write=interrupt)
    assert said.finish_reason == "interrupted"
    assert said.num_tokens >= 1


def test_a_prompt_that_leaves_no_room_is_refused(speaker: Speaker) -> None:
    with pytest.raises(RequestError, match=r"takes 4096 with the answer"):
        answer(speaker, "word " * 5000)


def script(*lines: str) -> Callable[[], str | None]:
    following: Iterator[str] = iter(lines)
    return lambda: next(following, None)


def talk(speaker: Speaker, *lines: str) -> str:
    written: list[str] = []
    chat(speaker, read=script(*lines), write=written.append)
    return "".join(written)


def test_a_chat_remembers_until_it_is_cleared(speaker: Speaker) -> None:
    first = answer(speaker, "Say a word").text
    assert talk(speaker, "Say a word", "/clear", "Say a word").count(first) == 2
    again = speaker.reply(
        [{"role": "user", "content": "Say a word"}, {"role": "assistant", "content": first},
         {"role": "user", "content": "More"}], lambda text: None,
    )  # fmt: skip
    assert again.text in talk(speaker, "Say a word", "More")


def test_commands_of_the_chat(speaker: Speaker) -> None:
    assert talk(speaker, "/exit", "Say a word").count("\n") == 1, "nothing is answered after /exit"
    assert talk(speaker, "/what", "").count("/clear forgets") == 2, "an unknown command shows the known ones"


def test_the_oldest_turns_are_forgotten_with_a_notice(speaker: Speaker) -> None:
    long = "word " * 1400
    said = talk(speaker, long, long, long)
    assert "1 of the oldest turns forgotten" in said or "2 of the oldest turns forgotten" in said


def test_a_question_that_is_too_long_does_not_end_the_chat(speaker: Speaker) -> None:
    said = talk(speaker, "word " * 5000, "Say a word")
    assert "Shorten it." in said
    assert answer(speaker, "Say a word").text in said


def test_an_adapter_folder_brings_its_base_and_its_system_prompt(tiny_llama: Path, tmp_path: Path, speaker) -> None:
    folder = random_adapter(tiny_llama, tmp_path / "mine", scale=1.0)
    write_artifact(folder, artifact_of(tiny_llama, system="Be brief."))
    with_adapter = load(InferRequest(model=str(folder), max_new_tokens=12), MACHINE)
    assert with_adapter.opening() == [{"role": "system", "content": "Be brief."}]
    named = load(InferRequest(model=str(tiny_llama), adapters=str(folder), system="", max_new_tokens=12), MACHINE)
    assert named.opening() == [], "an empty system prompt switches the training's off"
    assert answer(named, "Say a word").text != answer(speaker, "Say a word").text


def refuse_adapter_folder(tiny_qwen2: Path) -> None:
    load(InferRequest(model=str(tiny_qwen2), adapters=str(tiny_qwen2)), MACHINE)


def refuse_other_model(tiny_qwen2: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        random_adapter(tiny_qwen2, Path(folder), is_ours=False)
        config = json.loads((tiny_qwen2 / "config.json").read_text()) | {"intermediate_size": 768}
        other = Path(folder) / "other"
        shutil.copytree(tiny_qwen2, other)
        (other / "config.json").write_text(json.dumps(config))
        load(InferRequest(model=str(other), adapters=folder), MACHINE)


def refuse_gpu(tiny_qwen2: Path) -> None:
    load(InferRequest(model=str(tiny_qwen2), device="cuda"), MACHINE)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(refuse_adapter_folder, ModelError), (refuse_other_model, ModelError), (refuse_gpu, MachineError)],
)
def test_what_cannot_be_loaded_is_refused_in_two_lines(tiny_qwen2: Path, wrong, error) -> None:
    with pytest.raises(AdaptftError) as refusal:
        wrong(tiny_qwen2)
    assert type(refusal.value) is error
    assert len(str(refusal.value).splitlines()) == 2


def test_without_a_template_text_is_continued_and_a_system_prompt_refused(tiny_qwen2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny_qwen2, folder)
    (folder / "chat_template.jinja").unlink()
    speaker = load(InferRequest(model=str(folder), max_new_tokens=3), MACHINE)
    ids = speaker.render([{"role": "user", "content": "Once upon"}])
    assert speaker.tokenizer.decode(ids[0]) == "Once upon"
    assert "has no chat template" in talk(speaker, "Once upon")
    with pytest.raises(RequestError, match="takes no system prompt"):
        load(InferRequest(model=str(folder), system="Be brief."), MACHINE)


@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france(smollm2: Path) -> None:
    speaker = load(InferRequest(model=str(smollm2), max_new_tokens=30), MACHINE)
    said = answer(speaker, "What is the capital of France?")
    assert "Paris" in said.text
    assert said.finish_reason == "stop"
