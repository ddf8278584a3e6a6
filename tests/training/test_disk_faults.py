"""A disk that is full, read-only or slow: two lines, nothing half, and the last good checkpoint named."""

import errno
import json

import pytest
import torch
from faults import remount, small_disk
from training_plans import FULL, a_plan, a_trainer, losses, packs

from adaptft.errors import OutputError
from adaptft.training import folders, train
from adaptft.training.checkpoints import checkpoint_folders, damage
from adaptft.training.disk_faults import fault_number
from adaptft.training.keeping import CheckpointKeeper

PACKS = packs([[20, 30], [40, 22], [33, 12], [64]])
SCHEDULE = {"max_steps": 8, "save_steps": 2}


class Breaks:
    """A callback that breaks something before a step."""

    def __new__(cls, step, action):
        from transformers import TrainerCallback

        class Callback(TrainerCallback):
            def on_step_begin(self, args, state, control, **_):
                if state.global_step == step - 1:
                    action()

        return Callback()


def broken(plan, folder, step, action):
    trainer = a_trainer(plan, folder, PACKS)
    trainer.add_callback(Breaks(step, action))
    return trainer


def fill(folder, leaving):
    import shutil

    with (folder / "somebody.bin").open("wb") as stream:
        stream.write(b"\0" * (shutil.disk_usage(folder).free - leaving))


@pytest.fixture(scope="module")
def whole_losses(tiny_qwen2, tmp_path_factory):
    """Losses of a run that nothing breaks, by method."""
    return {
        name: losses(trained(a_plan(tiny_qwen2, method=method, schedule=SCHEDULE), tmp_path_factory.mktemp(name)))
        for name, method in (("lora", {}), ("full", FULL))
    }


def trained(plan, folder):
    trainer = a_trainer(plan, folder, PACKS)
    trainer.train()
    return trainer


@pytest.mark.parametrize("leaving", [100, 200_000, 700_000], ids=lambda n: f"{n}-left")
@pytest.mark.parametrize("method", [{}, FULL], ids=["lora", "full"])
def test_a_disk_that_fills_up_is_told_with_the_last_good_checkpoint(
    tiny_qwen2, whole_losses, tmp_path, leaving, method, monkeypatch
):
    monkeypatch.setattr(
        "adaptft.training.keeping.SPARE_BYTES", -(1 << 40)
    )  # no look beforehand: the write itself fails
    size = "8m" if not method else "120m"
    with small_disk(tmp_path / "disk", size) as disk:
        plan = a_plan(tiny_qwen2, method=method, schedule=SCHEDULE)
        with pytest.raises(
            OutputError, match=r"No space left on device.*last good checkpoint is .*checkpoint-2"
        ) as said:
            broken(plan, disk, 3, lambda: fill(disk, leaving)).train()
        assert "Free some space, and go on with --resume_from_checkpoint auto" in said.value.fix
        assert [p.name for p in checkpoint_folders(disk)] == ["checkpoint-2"]
        assert damage(disk / "checkpoint-2") is None
        assert not (disk / folders.STAGING).exists()
        (disk / "somebody.bin").unlink()
        resumed = a_trainer(plan, disk, PACKS)
        resumed.train(resume_from_checkpoint=str(disk / "checkpoint-2"))
    assert losses(resumed) == whole_losses["full" if method else "lora"]


def test_a_disk_that_is_too_small_is_told_before_the_first_step(tiny_qwen2, tmp_path):
    with small_disk(tmp_path / "disk", "8m") as disk:
        trainer = a_trainer(a_plan(tiny_qwen2, schedule=SCHEDULE), disk, PACKS)
        with pytest.raises(OutputError, match=r"A checkpoint takes about .* there is no checkpoint yet"):
            trainer.keeper.require_space(trainer.model)


def test_a_disk_that_becomes_read_only_is_told(tiny_qwen2, tmp_path):
    with small_disk(tmp_path / "disk", "64m") as disk:
        trainer = broken(a_plan(tiny_qwen2, schedule=SCHEDULE), disk, 3, lambda: remount(disk, "ro"))
        with pytest.raises(OutputError, match=r"Read-only file system.*checkpoint-2") as said:
            trainer.train()
        assert said.value.fix.startswith("Mount the disk writable, and go on")


def test_a_read_only_folder_is_refused_before_anything_is_read(tiny_qwen2, tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        remount(disk, "ro")
        plan = a_plan(tiny_qwen2, request={"output_dir": str(disk / "out")})
        with pytest.raises(OutputError, match="Read-only file system"):
            folders.check(plan.request, disk / "out")


def test_a_result_that_does_not_fit_leaves_the_checkpoints(tiny_qwen2, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"instruction": f"{n}?", "output": f"{n}."}) for n in range(30)))
    plan = a_plan(
        tiny_qwen2,
        request={"dataset": (str(rows),)},
        schedule={"max_steps": 4, "save_steps": 4},
        batch={"max_length": 160},
    )
    with small_disk(tmp_path / "disk", "20m") as disk:
        import threading

        def soon():
            while not (disk / "out" / "checkpoint-4").exists():
                pass
            fill(disk, 50_000)

        threading.Thread(target=soon, daemon=True).start()
        with pytest.raises(OutputError, match=r"No space left.*checkpoint-4"):
            train(plan, disk / "out")
        assert damage(disk / "out" / "checkpoint-4") is None
        assert not (disk / "out" / folders.PARTIAL).exists()


@pytest.mark.parametrize(
    "fault",
    [OSError(errno.ESTALE, "Stale file handle"), torch.OutOfMemoryError("CUDA out of memory."), MemoryError(),
     RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: 9 bytes.")],
    ids=["share", "GPU memory", "host memory", "host memory of torch"],
)  # fmt: skip
def test_a_save_that_stumbles_is_tried_again(tiny_qwen2, tmp_path, fault):
    trainer = a_trainer(a_plan(tiny_qwen2), tmp_path, PACKS)
    calls = []

    def save():
        calls.append(1)
        trainer.keeper.staging.mkdir(parents=True)
        if len(calls) < 3:
            raise fault

    trainer.keeper.write(save, pauses=(0.0, 0.0, 0.0))
    assert len(calls) == 3


def test_a_save_that_takes_long_is_told_once(tiny_qwen2, tmp_path, capsys):
    import time

    trainer = a_trainer(a_plan(tiny_qwen2), tmp_path, PACKS)
    keeper = CheckpointKeeper(trainer.plan, tmp_path, None, trainer.journal, slow_seconds=0.05)
    keeper.write(lambda: time.sleep(0.2))
    said = capsys.readouterr().err
    assert said.count("does its disk or share hang?") == 1
    trainer.keeper.write(lambda: None)
    assert capsys.readouterr().err == ""


def test_what_is_no_fault_of_the_disk_stays_what_it_is(tmp_path):
    assert fault_number(ValueError("no"), tmp_path) is None
    assert fault_number(OSError(errno.ECHILD, "No child processes"), tmp_path) is None
