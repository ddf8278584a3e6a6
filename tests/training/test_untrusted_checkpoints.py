"""A checkpoint may come from somebody else: what goes on from it runs no code, whatever its files and its seal say."""

import pickle
import shutil
from dataclasses import replace

import pytest
import torch
from test_checkpoints import PACKS, SCHEDULE
from training_plans import a_plan, a_trainer

from adaptft.errors import OutputError
from adaptft.records import write_json
from adaptft.training.checkpoints import SEAL, damage, read_seal
from adaptft.training.marks import mark_of


class Attack:
    """Unpickled, it makes a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return open, (str(self.place), "w")


@pytest.fixture(scope="module")
def half(tiny_qwen2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("half")
    a_trainer(a_plan(tiny_qwen2, schedule=SCHEDULE | {"max_steps": 2}), folder, PACKS).train()
    return folder


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_pickles_in_a_checkpoint_are_never_run(tiny_qwen2, half, tmp_path, name, form):
    checkpoint = shutil.copytree(half, tmp_path / "copy") / "checkpoint-2"
    attack = Attack(tmp_path / "made")
    if form == "pickle":
        (checkpoint / name).write_bytes(pickle.dumps(attack))
    else:
        torch.save({"state": attack}, checkpoint / name)
    seal = read_seal(checkpoint)
    write_json(checkpoint / SEAL, replace(seal, files=seal.files | {name: mark_of(checkpoint / name)}))
    assert damage(checkpoint) is None, "whoever forges a file can forge the seal"
    trainer = a_trainer(a_plan(tiny_qwen2, schedule=SCHEDULE), checkpoint.parent, PACKS)
    if name == "training_args.bin":  # written by transformers, and read by nobody
        trainer.train(resume_from_checkpoint=str(checkpoint))
    else:
        with pytest.raises(OutputError, match="could run code when they are read"):
            trainer.train(resume_from_checkpoint=str(checkpoint))
    assert not (tmp_path / "made").exists()
