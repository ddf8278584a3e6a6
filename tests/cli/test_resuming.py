"""What forbids going on with a run is said before the plan page: two lines on stderr, nothing on stdout."""

import json
import shutil

import pytest

from adaptft.cli import group
from adaptft.cli.errors import run as run_to_status


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"instruction": f"{n} + {n}?", "output": f"{n + n}."}) for n in range(40)))
    return path


def words(model, rows, out, **more):
    given = {
        "model": model, "dataset": rows, "output_dir": out, "train_type": "lora", "torch_dtype": "float32",
        "max_length": 64, "max_steps": 4, "save_steps": 2, "split_dataset_ratio": 0, "device": "cpu",
        "report_to": "none", "lora_rank": 4, **more,
    }  # fmt: skip
    named = {f"--{name}": str(value) for name, value in given.items() if value is not None}
    return ["train", *(word for pair in named.items() for word in pair)]


@pytest.fixture(scope="module")
def finished(tiny_qwen2, rows, tmp_path_factory):
    """A run of four steps without its result: checkpoints 2 and 4 are there."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPTFT_HOME", str(folder / "home"))
        assert run_to_status(lambda: group.main(words(tiny_qwen2, rows, folder / "out"), standalone_mode=False)) == 0
    return folder / "out"


@pytest.fixture
def copy(finished, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTFT_HOME", str(finished.parent / "home"))
    return shutil.copytree(finished, tmp_path / "copy")


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("changed", "said", "fix"),
    [
        ({"resume_from_checkpoint": "{out}/checkpoint-3"}, "There is no checkpoint", "--resume_from_checkpoint auto"),
        ({"resume_from_checkpoint": "{out}/checkpoint-4"}, "optimizer.pt has", "--resume_only_model true"),
        ({"resume_from_checkpoint": "auto", "output_dir": None}, "no run to go on with", "--output_dir FOLDER"),
        ({"resume_from_checkpoint": "auto", "lora_rank": 8}, "lora_rank 4 there and 8 here", "--lora_rank 4"),
        ({"resume_from_checkpoint": "auto", "seed": 7}, "seed 42 there and 7 here", "--seed 42"),
        ({"resume_from_checkpoint": "auto", "dataset": "{out}/other.jsonl"}, "rows.jsonl there and", "--dataset"),
        ({"resume_from_checkpoint": "auto", "model": "{llama}"}, "is of another run: model", "--model"),
        (
            {"resume_from_checkpoint": "{out}/checkpoint-2", "resume_only_model": "true", "output_dir": "{out}/new",
             "lora_rank": 8},
            "do not fit this plan: lora_rank 4 there and 8 here", "Use --lora_rank 4",
        ),
    ],
    ids=["missing", "damaged", "no folder", "other plan", "other seed", "other data", "other model", "other weights"],
)  # fmt: skip
def test_the_way_on_is_checked_before_the_plan_is_shown(
    adaptft_here, copy, tiny_qwen2, tiny_llama, rows, changed, said, fix
):
    halve(copy / "checkpoint-4" / "optimizer.pt")
    (copy / "other.jsonl").write_text(rows.read_text().replace("+", "plus"))
    more = {
        name: value.format(out=copy, llama=tiny_llama) if isinstance(value, str) else value
        for name, value in changed.items()
    }
    model = more.pop("model", tiny_qwen2)
    data, out = more.pop("dataset", rows), more.pop("output_dir", copy)
    done = adaptft_here(*words(model, data, out, **more))
    problem, way_out = [line for line in done.stderr.splitlines() if line.startswith(("Error:", "Fix:"))]
    assert done.stdout == ""
    assert said in problem
    assert fix in way_out
    assert done.returncode in (1, 2)


def test_auto_rewrites_a_damaged_checkpoint_once_its_step_comes_again(adaptft_here, copy, finished, tiny_qwen2, rows):
    for name in ("adaptft.json", "report.json"):
        (copy / name).unlink()
    halve(copy / "checkpoint-4" / "optimizer.pt")
    damaged = (copy / "checkpoint-4" / "optimizer.pt").read_bytes()
    done = adaptft_here(*words(tiny_qwen2, rows, copy, resume_from_checkpoint="auto"))
    assert done.returncode == 0, done.stderr
    assert "Passed over checkpoint-4: optimizer.pt has" in " ".join(done.stdout.split())
    assert done.stderr.startswith("Passed over checkpoint-4: optimizer.pt has"), "before hours of training, too"
    weights = "adapter_model.safetensors"
    assert (copy / "checkpoint-4" / weights).read_bytes() == (finished / "checkpoint-4" / weights).read_bytes()
    assert (copy / "checkpoint-4.aside" / "optimizer.pt").read_bytes() == damaged, "nothing damaged is deleted"
