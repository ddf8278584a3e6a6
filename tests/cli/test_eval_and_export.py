"""adaptft export and adaptft eval, from the words on the command line to the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from adapters_factory import random_adapter

from adaptft.cli import main
from adaptft.cli.export_page import readable_pattern


def call(capfd: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return int(end.value.code or 0), *capfd.readouterr()


def test_one_command_exports_an_adapter_and_another_compares_it(
    tiny_qwen2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llmcompressor")
    run = random_adapter(tiny_qwen2, tmp_path / "run")
    capfd.readouterr()
    code, page, _ = call(capfd, "export", "--format", "fp8", "--adapters", run, "--accept-loss", "--for-gpu", "a10")
    assert code == 0
    assert page.index("Export plan") < page.index("Exported")
    assert "NVIDIA A10 (compute capability 8.6) serves this as weight-only" in page
    assert "exactly 28" in page
    assert "28 of 29 linear layers compressed" in page

    code, text, _ = call(capfd, "eval", run, "--exports", f"{run}-fp8", "--max_rows", "4", "--json")
    assert code == 0
    base, adapter, export = json.loads(text)["scores"]
    assert [Path(score["path"]) for score in (base, adapter, export)] == [tiny_qwen2, run, Path(f"{run}-fp8")]
    assert export["loss"] == pytest.approx(adapter["loss"], abs=0.05)

    code, page, _ = call(capfd, "eval", tiny_qwen2, "--max_rows", "2", "--output", tmp_path / "scores.json")
    assert "Perplexity" in page
    assert json.loads((tmp_path / "scores.json").read_text())["scores"][0]["num_rows"] == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--format", "int4", "--model", "x"], 2, "int4"),
        (["--format", "awk", "--model", "x"], 2, "awq"),
        (["--format", "gguf", "--model", "x"], 2, "convert_hf_to_gguf.py"),
        (["--format", "fp8"], 2, "--adapters"),
        (["--format", "fp8", "--adapters", "nowhere"], 1, "There is no folder nowhere"),
    ],
)
def test_bad_words_are_two_lines(words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    ended, out, err = call(capfd, "export", *words)
    assert (ended, out) == (code, "")
    assert said in err
    assert len(err.strip().splitlines()) == 2


def test_patterns_are_shown_as_names() -> None:
    assert readable_pattern(r"re:.*\.mlp\.gate$") == "mlp.gate"
    assert readable_pattern(r"re:.*\.mlp\.experts\.\d+\.(gate_proj|up_proj)$") == "mlp.experts.*.(gate_proj|up_proj)"
    assert readable_pattern("lm_head") == "lm_head"
