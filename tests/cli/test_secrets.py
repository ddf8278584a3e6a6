"""Tokens and keys are in nothing that adaptft prints or writes, however they are handed over."""

import json

import pytest

from adaptft.requests import ServeRequest

SECRET = "s3cretS3cret4711"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"instruction": f"{n}?", "output": f"{n}."}) for n in range(12)))
    return path


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["serve", "{model}", "--api_key", SECRET, "--infer_backend", "transformers", "--print"], 0),
        (["serve", "{model}", "--api_key", SECRET, "--port", "nine"], 2),
        (["serve", "{model}", f"--api_key={SECRET}", "--prot", "9"], 2),
        (["serve", "{model}", "--api_keyy", SECRET], 2),
        (["train", "--model", "{model}", "--api_key", SECRET], 2),
        (["train", "--model", "{model}", "--hub_token", SECRET], 2),
        (["serve", "{recipe}"], 2),
    ],
)
def test_a_key_is_never_printed(adaptft_here, tiny_qwen2, tmp_path, words, status):
    recipe = tmp_path / "serve.yaml"
    recipe.write_text(f"model: {tiny_qwen2}\napi_key: [{SECRET}, b]\nport: nine\n")
    done = adaptft_here(*(word.format(model=tiny_qwen2, recipe=recipe) for word in words))
    assert done.returncode == status, done.stderr
    assert done.stdout + done.stderr != ""
    assert SECRET not in done.stdout + done.stderr


def test_what_a_run_writes_holds_none_of_the_environment_s_secrets(
    adaptft_here, tiny_qwen2, rows, tmp_path, monkeypatch
):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "ADAPTFT_API_KEY", "MODELSCOPE_API_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    done = adaptft_here(
        "train", "--model", str(tiny_qwen2), "--dataset", str(rows), "--output_dir", str(tmp_path / "out"),
        "--train_type", "lora", "--torch_dtype", "float32", "--device", "cpu", "--max_steps", "1", "--max_length", "64",
        "--split_dataset_ratio", "0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.json", "plan.json", "README.md", "checkpoint.json"} <= {path.name for path in written}
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in done.stdout + done.stderr


def test_nothing_but_this_machine_reaches_an_endpoint_unless_asked_for():
    assert ServeRequest(model="m").host == "127.0.0.1"
