"""``adaptft launch``: a plan in short, a job, and the command that submits it; and what it refuses."""

import ast
import subprocess
from pathlib import Path

import pytest
import yaml

MODEL = ("--model", "qwen2.5-7b", "--train_type", "lora", "--global_batch_size", "8")
GPUS = ("--gpu", "h100", "--gpus", "8")
POD = ("--image", "registry/adaptft:1", "--claim", "data")


@pytest.fixture
def launch(adaptft_here, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)
    return lambda *words: adaptft_here("launch", *words)


def read_by_bash(text):
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("scheduler", "words", "submit", "is_read"),
    [
        (
            "slurm",
            (),
            "sbatch 'my job'",
            lambda text: subprocess.run(["bash", "-n"], input=text, text=True, check=True),
        ),
        ("kubernetes", POD, "kubectl apply -f 'my job'", yaml.safe_load),
        ("ray", (), "ray job submit --working-dir . -- python 'my job'", ast.parse),
    ],
)
def test_a_job_is_written_or_printed_with_its_plan_and_how_to_submit_it(
    launch, tmp_path, scheduler, words, submit, is_read
):
    written = launch(scheduler, *MODEL, *GPUS, *words, "-o", "my job")
    assert written.returncode == 0, written.stderr
    lines = written.stdout.splitlines()
    assert lines[0].startswith("qwen2.5-7b, lora, on 8 x NVIDIA H100")
    assert lines[-1] == f"Submit: {submit}"
    text = (tmp_path / "my job").read_text()
    is_read(text)
    printed = launch(scheduler, *MODEL, *GPUS, *words)
    assert printed.stdout == text, "alone on stdout"
    assert "Submit: " in printed.stderr


def test_options_of_each_scheduler_reach_its_job(launch):
    script = launch(
        "slurm", *MODEL, *GPUS, "--sbatch", "partition=gpu", "--time", "02:00:00", "--setup", "module load x"
    )
    for line in ("#SBATCH --partition=gpu", "#SBATCH --time=02:00:00", "module load x"):
        assert line in script.stdout.splitlines()
    words = ("--kind", "PyTorchJob", "--mount", "/shared", "--shm", "64Gi", "--namespace", "n", "--cpus", "8")
    job = launch("kubernetes", *MODEL, *GPUS, *POD, *words).stdout
    for part in (
        "kind: PyTorchJob",
        "mountPath: /shared",
        "sizeLimit: 64Gi",
        "namespace: n",
        "cpu: '8'",
        "/shared/output/",
    ):
        assert part in job
    assert '"CPU": 8' in launch("ray", *MODEL, *GPUS, "--cpus", "8").stdout


@pytest.mark.parametrize(
    ("words", "problem", "fix"),
    [
        ((), "Nothing says for which scheduler", "slurm, kubernetes, ray"),
        (("pbs", *MODEL), "pbs is no scheduler", "slurm, kubernetes, ray"),
        (("slurm", *MODEL, *GPUS, "--image", "x"), "--image is for kubernetes", "Leave it out"),
        (("ray", *MODEL, *GPUS, "--time", "1:00"), "--time is for slurm", "Leave it out"),
        (("kubernetes", *MODEL, *GPUS, "--claim", "data"), "which container image", "Add --image NAME"),
        (("kubernetes", *MODEL, *GPUS, "--image", "x"), "which volume keeps", "Add --claim NAME"),
        (("kubernetes", *MODEL, *GPUS, *POD, "--output_dir", "out"), "is lost with the pods", "--output_dir /data/"),
        (("slurm", *MODEL, "--gpus", "8"), "does not say of which", "--gpu NAME"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_two_lines(launch, words, problem, fix):
    done = launch(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.strip().splitlines()
    assert problem in first
    assert fix in second


def test_a_login_node_does_not_plan_for_itself(launch, tmp_path):
    recorded = str(Path(__file__).parents[1] / "machines" / "cpu.json")
    done = launch("slurm", *MODEL, "--machine", recorded)
    assert done.returncode == 2
    assert "--gpu h100 --gpus 8" in done.stderr


def test_a_plan_that_does_not_fit_writes_no_job(launch, tmp_path):
    done = launch("slurm", "--model", "qwen2.5-7b", "--train_type", "full", "--gpu", "t4", "-o", "job")
    assert done.returncode == 3
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--nnodes", "2", "--node_rank", "2", "--master_addr", "h"), "node_rank 2 is beyond"),
        (("--nnodes", "2", "--node_rank", "0"), "where the first machine is"),
        (("--nnodes", "0"), "--nnodes 0 is out of range"),
        (("--node_rank", "1"), "for several machines"),
    ],
)
def test_training_on_machines_that_cannot_be_meant_is_refused_at_once(adaptft_here, words, problem):
    done = adaptft_here("train", "--model", "qwen2.5-7b", *words)
    assert done.returncode == 2
    first, _second = done.stderr.strip().splitlines()
    assert problem in first
