"""A run that is stopped where an evaluation is due ends as one that was left in peace: here the step is chosen.

``benchmarks/soak.py`` and ``benchmarks/kill_anywhere.py`` choose it by chance. Four steps are an epoch, two epochs the
run, so that its last checkpoint stands where no epoch is left to begin.
"""

import json
import signal

import pytest
import torch
from forked import Forked
from training_plans import a_plan
from transformers import TrainerState

from adaptft.training.arguments import training_arguments
from adaptft.training.checkpoints import checkpoint_folders
from adaptft.training.resumable import owes_evaluation

STEPS, EPOCH = 8, 4
EVALUATED = {"steps": ["--eval_steps", "3"], "epoch": ["--eval_strategy", "epoch"]}


class Runs:
    """Runs of one command in one folder."""

    def __init__(self, model, folder):
        self.folder = folder
        rows = [{"instruction": f"{n} + {n}?", "output": f"{n + n}."} for n in range(17)]
        (folder / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.words = [
            "train", "--model", str(model), "--dataset", "r.jsonl", "--split_dataset_ratio", "0.1", "--device", "cpu",
            "--train_type", "lora", "--lora_dropout", "0.1", "--max_length", "128", "--packing", "false",
            "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--max_steps", str(STEPS),
            "--save_steps", "2", "--resume_from_checkpoint", "auto", "--report_to", "none",
        ]  # fmt: skip

    def start(self, out, evaluated, gets=None):
        words = [*self.words, *EVALUATED[evaluated], "--output_dir", str(out)]
        home = {"ADAPTFT_HOME": str(self.folder / "home")}
        return Forked(words, self.folder / "log", home, folder=self.folder, gets=gets)

    def to_the_end(self, out, evaluated):
        """All that has to be the same of two runs."""
        status, lines = self.start(out, evaluated).ended()
        assert status == 0, lines
        report, last = json.loads((out / "report.json").read_text()), checkpoint_folders(out)[0]
        history = json.loads((last / "trainer_state.json").read_text())["log_history"]
        return {
            "losses": [step["loss"] for step in report["steps"]],
            "evaluations": [(e["step"], e["eval_loss"]) for e in history if "eval_loss" in e and e["step"] < STEPS],
            "held out": (report["initial_eval_loss"], report["final_eval_loss"]),
            "weights": (out / "adapter_model.safetensors").read_bytes(),
            "random state": torch.load(last / "rng_state.pth", weights_only=False)["cpu"].tolist(),
        }


@pytest.fixture(scope="module")
def runs(tiny_qwen2, tmp_path_factory):
    return Runs(tiny_qwen2, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def whole(runs):
    """By when they are evaluated: runs that nobody disturbs."""
    return {evaluated: runs.to_the_end(runs.folder / f"whole-{evaluated}", evaluated) for evaluated in EVALUATED}


STOPPED = {
    "in a step that is evaluated": ("steps", 3, signal.SIGTERM),
    "in its last step": ("steps", STEPS, signal.SIGTERM),
    "in a step that is not evaluated": ("steps", 5, signal.SIGINT),
    "in the last step of an epoch that is evaluated": ("epoch", EPOCH, signal.SIGTERM),
    "in the last step of the last epoch": ("epoch", STEPS, signal.SIGTERM),
    "by a kill behind an evaluation that no checkpoint holds": ("epoch", EPOCH + 1, signal.SIGKILL),
}


@pytest.mark.parametrize(("evaluated", "step", "number"), STOPPED.values(), ids=STOPPED)
def test_a_run_that_was_stopped_ends_as_if_it_had_not(evaluated, step, number, runs, whole, tmp_path):
    out = tmp_path / "out"
    status, lines = runs.start(out, evaluated, gets=(number, step)).ended()
    assert status == (-signal.SIGKILL if number == signal.SIGKILL else 0), lines
    assert not (out / "adaptft.json").exists(), "the run is not finished"
    assert runs.to_the_end(out, evaluated) == whole[evaluated]


def test_every_evaluation_is_there(whole):
    steps = {evaluated: [step for step, _ in run["evaluations"]] for evaluated, run in whole.items()}
    assert steps == {"steps": [0, 3, 6], "epoch": [0, 4]}


OWED = {
    "before the first step": ("steps", 0, [], True),
    "behind a step that is evaluated": ("steps", 3, [0], True),
    "done already": ("steps", 3, [0, 3], False),
    "behind any other step": ("steps", 4, [0, 3], False),
    "behind the last step, whatever its number": ("steps", 7, [0, 3, 6], True),
    "behind an epoch": ("epoch", EPOCH, [0], True),
    "amid an epoch": ("epoch", 3, [0], False),
    "behind the last step of half an epoch": ("epoch", 7, [0, 4], True),
    "never, as asked for": ("no", 3, [0], False),
}


@pytest.mark.parametrize(("strategy", "step", "evaluated", "is_owed"), OWED.values(), ids=OWED)
def test_a_checkpoint_tells_the_evaluation_that_its_step_owes(strategy, step, evaluated, is_owed, tmp_path):
    plan = a_plan(tmp_path, schedule={"max_steps": 7, "eval_steps": 3}, request={"eval_strategy": strategy})
    arguments = training_arguments(plan, tmp_path, evaluates=True)
    history = [{"step": n, "loss": 1.0} for n in range(1, step + 1)] + [{"step": n, "eval_loss": 1} for n in evaluated]
    state = TrainerState(global_step=step, epoch=step / EPOCH, log_history=history)
    state.compute_steps(arguments, 7)
    state.max_steps = 7
    assert owes_evaluation(arguments, state, EPOCH) is is_owed
