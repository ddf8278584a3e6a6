"""benchmarks/speed.py: what it reads of peers, what it writes, and that a second call measures nothing twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULT = {
    "name": "x", "steps": 14, "step_s": 0.5, "total_s": 7.0, "peak_alloc_gib": 2.5, "loss_last": [1.25], "tok_s": 1000.0
}  # fmt: skip
SCRIPT = """# run_peers.sh PEER CASE...
peer=$1
M=/their/model; D=/their/data
export PYTHONPATH=SITE-$peer
echo "{'loss': 2.5}" > $OUT/$peer-$2.log; sleep 0.3
echo "$M $D $BENCH" > SITE-$peer/seen
echo 'RESULT {"steps": 14, "peak_alloc_gib": 0.5, "tok_s_epoch": 50.0}' >> $OUT/$peer-$2.log
"""


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import peers

    return peers


@pytest.mark.parametrize(
    ("changed", "speed"), [({}, 1000.0), ({"tok_s": None, "tok_s_epoch": 800.0}, 800.0)], ids=["of a step", "of all"]
)
def test_the_last_result_line_of_a_peer_is_read(peers, changed, speed):
    first, last = json.dumps({**RESULT, "tok_s": 1.0}), json.dumps(RESULT | changed)
    said = f"loading\nRESULT {first}\n100%|####| 14/14 [00:13<00:00, 1.36it/s]RESULT {last}\nbye\n"
    expected = {"tokens_per_second": speed, "peak_bytes": int(2.5 * 2**30), "steps": 14, "last_loss": 1.25}
    assert peers.parse(said) == expected


@pytest.mark.parametrize("said", ["Traceback: out of memory", 'RESULT {"steps": 2, "step_s": null}'])
def test_a_peer_without_a_result_is_no_figure(peers, said):
    with pytest.raises(peers.Failed, match="no result; it said last"):
        peers.parse(said)


def test_a_script_that_names_its_model_elsewhere_is_refused(peers):
    with pytest.raises(peers.Failed, match="sets M= 0 times"):
        peers.with_our(Path("a"), Path("b"), "export MODEL=/x; D=/y\n")


@pytest.fixture
def world(tmp_path):
    """A folder of peers and a folder of data."""
    site = tmp_path / "site-trl"
    (site / "trl-1.16.0.dist-info").mkdir(parents=True)
    (site / "trl-1.16.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: trl\nVersion: 1.16.0\n")
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "run_peers.sh").write_text(SCRIPT.replace("SITE", str(tmp_path / "site")))
    (tmp_path / "data").mkdir()
    rows = [{"instruction": f"Count from {n}.", "output": " ".join(map(str, range(n, n + 60)))} for n in range(24)]
    (tmp_path / "data" / "long.json").write_text(json.dumps(rows))
    return tmp_path


def _speed(world, model, *words):
    command = [sys.executable, str(BENCHMARKS / "speed.py"), str(model), str(world / "data"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_jobs_and_peers_are_measured_once_and_compared(world, tiny_qwen2):
    out = world / "out.json"
    words = ("--jobs", "lora-bf16", "--length", "64", "--steps", "3", "--out", str(out))
    with_peers = ("--peers", str(world / "peers"), "--with-peers", "trl")
    first = _speed(world, tiny_qwen2, *words, *with_peers)
    assert first.returncode == 0, first.stdout + first.stderr
    content = json.loads(out.read_text())
    [job] = content["jobs"]
    assert (job["job"], job["peer"], job["peer_tokens_per_second"]) == ("lora-bf16", "trl", 50.0)
    assert job["ratio"] == pytest.approx(job["tokens_per_second"] / 50)
    assert job["peak_bytes"] > 0
    assert job["seconds_to_first_step"] > content["peers"]["trl long_fast"]["seconds_to_first_step"] > 0
    assert content["versions"]["trl"] == "1.16.0"
    assert (world / "site-trl" / "seen").read_text().split()[:2] == [str(tiny_qwen2), str(world / "data")]
    assert f"trl {job['ratio']:.2f}" in first.stdout
    assert str(world) not in out.read_text(), "no paths of this machine in results"
    second = _speed(world, tiny_qwen2, *words, *with_peers)
    assert second.returncode == 0
    assert json.loads(out.read_text()) == content


@pytest.mark.slow
def test_a_job_that_fails_is_told_and_leaves_no_figure(world, tiny_qwen2):
    done = _speed(world, tiny_qwen2, "--jobs", "lora-fp8", "--length", "64", "--out", str(world / "out.json"))
    assert done.returncode == 1
    assert "FP8 training needs a GPU" in done.stdout
    assert json.loads((world / "out.json").read_text())["jobs"] == []
