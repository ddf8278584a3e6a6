"""The sbatch script: its directives, its shell, and a run of it with two machines that are processes of this one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from planned_jobs import a_job

from adaptft.jobs.slurm import sbatch_script, slurm_time

ROOT, BIN = Path(__file__).parents[2], Path(__file__).parent / "bin"
KNOWN = {
    "job-name": r"[\w.-]+", "nodes": r"\d+", "ntasks-per-node": "1", "gpus-per-node": r"\d+",
    "time": r"(\d+-)?\d\d:\d\d:\d\d", "output": r"\S+", "open-mode": "append|truncate", "requeue": "",
    "signal": r"(B:)?[A-Z]+@\d+", "partition": r"\w+",
}  # fmt: skip
"""sbatch's options that the script uses, and the form of their values (man sbatch)."""


def directives(script):
    """The directives as sbatch reads them: it stops at the first line that is neither blank nor a comment."""
    found = {}
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            assert name not in found, f"{name} is said twice"
            found[name] = value
    return found


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_directives_are_sbatchs_and_say_what_the_plan_says(nodes):
    script = sbatch_script(a_job(nodes), directives=("partition=gpu",), setup=("source venv/bin/activate",))
    found = directives(script)
    for name, value in found.items():
        assert re.fullmatch(KNOWN[name], value), (name, value)
    assert script.startswith("#!/bin/bash\n")
    assert len(re.findall("^#SBATCH", script, re.MULTILINE)) == len(found), "none stands where sbatch reads no more"
    assert (found["nodes"], found["gpus-per-node"], found["partition"]) == (str(nodes), "8", "gpu")
    assert script.index("source venv") < script.index("srun")
    assert ("--master_addr" in script) == ("scontrol show hostnames" in script) == (nodes > 1)


@pytest.mark.parametrize("system", ["", 'You\'re "it", $HOME `date` \\ \n two lines'])
def test_bash_and_shellcheck_find_nothing_wrong(system, tmp_path):
    script = tmp_path / "job.sbatch"
    wished = {"system": system} if system else {}
    script.write_text(sbatch_script(a_job(dataset=("my data.jsonl",), **wished)))
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True).stderr == ""
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "--severity=warning", str(script)], capture_output=True, text=True)
        assert done.stdout == ""


@pytest.mark.parametrize(("seconds", "text"), [(5400, "01:30:00"), (184200, "2-03:10:00"), (600, "00:10:00")])
def test_times_are_written_as_slurm_reads_them(seconds, text):
    assert slurm_time(seconds) == text


@pytest.mark.long
def test_the_script_runs_stops_when_it_is_told_to_queues_again_and_finishes(tiny_qwen2, tmp_path):
    rows = [{"instruction": f"{n} + {n}?", "output": f"{n + n}."} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = [sys.executable, "-m", "adaptft"]
    wishes = (
        "--model", str(tiny_qwen2), "--dataset", "rows.jsonl", "--device", "cpu", "--nnodes", "2",
        "--train_type", "lora", "--max_steps", "40", "--save_steps", "4", "--max_length", "64", "--report_to", "none",
        "--global_batch_size", "2", "--output_dir", "out", "--split_dataset_ratio", "0",
    )  # fmt: skip
    tools = tmp_path / "tools"
    shutil.copytree(BIN, tools)
    (tools / "adaptft").write_text(f'#!/bin/bash\nexec {sys.executable} -m adaptft "$@"\n')
    (tools / "adaptft").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "ADAPTFT_HOME": str(tmp_path / "home"),
        "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node[1-2]",
        "REQUEUED": str(tmp_path / "requeued"),
    }  # fmt: skip
    written = subprocess.run(
        [*command, "launch", "slurm", *wishes, "-o", "job.sbatch"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    assert "Submit: sbatch job.sbatch" in written.stdout

    job = subprocess.Popen(["bash", "job.sbatch"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("checkpoint-*/checkpoint.json")):
        assert job.poll() is None, job.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (srun,) = [child for child in psutil.Process(job.pid).children() if "srun" in " ".join(child.cmdline())]
    srun.send_signal(signal.SIGTERM)
    said = job.communicate(timeout=120)[1]
    assert job.returncode == 0, said
    assert (tmp_path / "requeued").read_text().split() == [str(os.getpid())]
    assert not (tmp_path / "out" / "adaptft.json").exists()

    again = subprocess.run(["bash", "job.sbatch"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out" / "adaptft.json").exists()
    assert len((tmp_path / "requeued").read_text().split()) == 1, "a finished run is not queued again"
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [step["step"] for step in report["steps"]][-1] == 40
