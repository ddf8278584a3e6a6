"""What comes with data and models is not trusted: no code runs, no template leaves its sandbox, no secret is kept."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest

import adaptft
from adaptft.errors import AdaptftError, DataError, RequestError

PACKAGE = Path(adaptft.__file__).parent


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch ' ~ PLACE) }}",
        "{% set x = messages.append({'role': 'user', 'content': 'y'}) %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(read, tokenizer_with, tmp_path, attack):
    tokenizer = tokenizer_with("qwen2.5")
    tokenizer.chat_template = attack.replace("PLACE", f"'{tmp_path}/made'") + tokenizer.chat_template
    began = time.monotonic()
    with pytest.raises(DataError, match="refused by the chat template"):
        read([{"instruction": "?", "output": "!"}], tokenizer)
    assert not (tmp_path / "made").exists()
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("text", ["{{ 7 * 7 }}", "{% raw %}", "{{ ''.__class__ }}"])
def test_text_of_a_row_is_never_a_template(read, text):
    assert read([{"instruction": "?", "output": text}]).trained() == [f"{text}<|im_end|>"]


@pytest.mark.parametrize("name", ["rows.pkl", "rows.pickle", "rows.pt", "rows.py", "rows.npy"])
def test_pickles_and_programs_are_no_data(read, tmp_path, name):
    import pickle

    (tmp_path / name).write_bytes(pickle.dumps([{"text": "a"}]))
    with pytest.raises(DataError, match="no known data format"):
        read(tmp_path / name)


def test_a_registration_runs_no_script(read, tmp_path):
    (tmp_path / "load.py").write_text("raise SystemExit('must not run')")
    (tmp_path / "dataset_info.json").write_text('{"own": {"script_url": "load.py"}}')
    with pytest.raises(DataError, match="neither file_name"):
        read(tmp_path / "own")


def test_no_module_of_ours_reads_pickles_or_unsafe_yaml():
    """Names of what can run code while it reads; weights are safetensors, recipes are YAML without objects."""
    forbidden = {"pickle", "dill", "joblib", "cloudpickle", "shelve", "marshal"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name.partition(".")[0] for alias in node.names}, path
            if isinstance(node, ast.ImportFrom) and [name.name for name in node.names] != ["UnpicklingError"]:
                assert (node.module or "").partition(".")[0] not in forbidden, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = ast.unparse(node)
                if ast.unparse(node.func) in ("torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                    assert "weights_only=True" in words or "Loader=_TextLoader" in words, f"{path}: {words}"
                assert "allow_pickle=True" not in words, path


@pytest.mark.parametrize("recipe", ["!!python/object/apply:os.system ['touch made']", "model: !!python/name:os.system"])
def test_a_recipe_makes_no_python_objects(tmp_path, monkeypatch, recipe):
    from adaptft.parsing.recipes import read_recipe

    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(recipe)
    with pytest.raises(RequestError) as error:
        read_recipe(tmp_path / "recipe.yaml")
    assert len(str(error.value).splitlines()) == 2
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("401 for https://me:pa55@mirror.example/x", "https://***@mirror.example/x"),
        ("token hf_abcdefghijklmnopqrstuvwxyz012345 is invalid", "token hf_*** is invalid"),
        ("Authorization: Bearer sk-0123456789abcdef", "Authorization: Bearer ***"),
        ("GET https://h.example/f?X-Amz-Signature=0a1b2c&y=1", "https://h.example/f?X-Amz-Signature=***&y=1"),
        ("no secret in hf_home", "no secret in hf_home"),
    ],
)
def test_errors_never_show_secrets(text, kept):
    error = AdaptftError(text, fix=text)
    assert kept in error.problem
    assert kept in error.fix
    assert not any(secret in str(error) for secret in ("pa55", "abcdefghijkl", "0123456789abcdef", "0a1b2c"))


def test_the_environment_s_secrets_are_in_nothing_that_reading_writes(read, own_cache, monkeypatch):
    secret = "hf_" + "s3cret" * 6
    monkeypatch.setenv("HF_TOKEN", secret)
    said = json.dumps(read([{"instruction": "?", "output": "!"}]).report.dialect)
    assert secret not in said
    assert not any(secret.encode() in path.read_bytes() for path in own_cache.rglob("*") if path.is_file())
