"""A run goes on as if it had never stopped, from whole checkpoints only."""

import shutil

import pytest
from training_plans import FULL, a_plan, a_trainer, losses, packs

from adaptft.errors import OutputError
from adaptft.training.checkpoints import checkpoint_folders, damage, find_checkpoint, newest_whole
from adaptft.training.keeping import require_free_bytes

PACKS = packs([[20 + i % 7, 30 - i % 11] for i in range(10)])
SCHEDULE = {"max_steps": 8, "save_steps": 2}


def run(plan, folder, resume=None):
    trainer = a_trainer(plan, folder, PACKS)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


@pytest.fixture(scope="module")
def whole(tiny_qwen2, tmp_path_factory):
    """A run of 8 steps (10 packs, so it crosses an epoch) with all its checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    return run(a_plan(tiny_qwen2, schedule=SCHEDULE, request={"save_total_limit": None}), folder), folder


@pytest.fixture
def copy(whole, tmp_path):
    """Its folder, to be damaged."""
    return shutil.copytree(whole[1], tmp_path / "copy")


def test_checkpoints_are_whole_and_found_newest_first(whole):
    assert [p.name for p in checkpoint_folders(whole[1])] == [f"checkpoint-{n}" for n in (8, 6, 4, 2)]
    assert all(damage(p) is None for p in checkpoint_folders(whole[1]))


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_resumed_run_equals_one_that_never_stopped_bit_for_bit(whole, tiny_qwen2, tmp_path, step):
    resumed = run(a_plan(tiny_qwen2, schedule=SCHEDULE), tmp_path, whole[1] / f"checkpoint-{step}")
    assert losses(resumed) == losses(whole[0])
    assert checkpoint_folders(tmp_path)[0].name == "checkpoint-8"


def test_a_full_fine_tune_resumes_bit_for_bit(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, method=FULL, schedule={"max_steps": 4, "save_steps": 2})
    uninterrupted = run(plan, tmp_path / "a")
    assert losses(run(plan, tmp_path / "b", tmp_path / "a" / "checkpoint-2")) == losses(uninterrupted)


def test_dropout_resumes_bit_for_bit(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, method={"lora_dropout": 0.2}, schedule={"max_steps": 4, "save_steps": 2})
    uninterrupted = run(plan, tmp_path / "a")
    assert losses(run(plan, tmp_path / "b", tmp_path / "a" / "checkpoint-2")) == losses(uninterrupted)


@pytest.mark.parametrize(("micro", "accumulation"), [(1, 4), (2, 2)])
def test_micro_batch_and_accumulation_may_change_on_the_way(tiny_qwen2, tmp_path, micro, accumulation):
    size = {"global_batch_size": 4}
    gentle = {
        "optimizer": {"learning_rate": 1e-4}, "schedule": {"max_steps": 6, "save_steps": 2},
        "request": {"save_total_limit": None},
    }  # fmt: skip
    before = a_plan(tiny_qwen2, batch={"micro_batch_size": 4, "gradient_accumulation_steps": 1, **size}, **gentle)
    now = {"micro_batch_size": micro, "gradient_accumulation_steps": accumulation, **size}
    uninterrupted = run(before, tmp_path / "a")
    resumed = run(a_plan(tiny_qwen2, batch=now, **gentle), tmp_path / "b", tmp_path / "a" / "checkpoint-2")
    assert losses(resumed) == pytest.approx(losses(uninterrupted), rel=1e-4)
    assert rates(resumed) == rates(uninterrupted)
    assert resumed.state.global_step == 6
    assert resumed.state.train_batch_size == micro


def rates(trainer):
    return [entry["learning_rate"] for entry in trainer.state.log_history if "seconds" in entry]


def test_the_intervals_are_those_of_the_new_plan(whole, tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, schedule={"max_steps": 8, "save_steps": 3})
    run(plan, tmp_path, whole[1] / "checkpoint-2")
    assert [p.name for p in checkpoint_folders(tmp_path)] == ["checkpoint-8", "checkpoint-6"]


def test_only_the_last_checkpoints_are_kept(tiny_qwen2, tmp_path):
    run(a_plan(tiny_qwen2, schedule=SCHEDULE, request={"save_total_limit": 2}), tmp_path)
    assert [p.name for p in checkpoint_folders(tmp_path)] == ["checkpoint-8", "checkpoint-6"]


def delete(path):
    path.unlink()


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("optimizer.pt", delete, "optimizer.pt is missing"),
        ("optimizer.pt", halve, r"optimizer.pt has \d+ of \d+ bytes"),
        ("scheduler.pt", delete, "scheduler.pt is missing"),
        ("trainer_state.json", delete, "trainer_state.json is missing"),
        ("rng_state.pth", delete, "rng_state.pth is missing"),
        ("adapter_model.safetensors", flip_a_byte, "adapter_model.safetensors has changed"),
        ("checkpoint.json", delete, "was not finished"),
        ("checkpoint.json", halve, "is not a checkpoint's list"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name_and_passed_over_by_auto(tiny_qwen2, copy, name, harm, said):
    harm(copy / "checkpoint-8" / name)
    by_name = a_plan(tiny_qwen2, request={"resume_from_checkpoint": str(copy / "checkpoint-8")})
    with pytest.raises(OutputError, match=said) as refused:
        find_checkpoint(by_name.request, copy)
    others_are_whole = name not in ("adapter_model.safetensors", "checkpoint.json")
    assert ("--resume_only_model true" in refused.value.fix) == others_are_whole, "only where the weights are whole"
    found, notes = find_checkpoint(a_plan(tiny_qwen2, request={"resume_from_checkpoint": "auto"}).request, copy)
    assert found == copy / "checkpoint-6"
    assert notes[0].startswith("Passed over checkpoint-8")
    assert (copy / "checkpoint-8").is_dir(), "nothing damaged is deleted"


def test_auto_starts_anew_where_there_is_nothing(tiny_qwen2, tmp_path):
    assert find_checkpoint(a_plan(tiny_qwen2, request={"resume_from_checkpoint": "auto"}).request, tmp_path) == (
        None,
        (),
    )


def test_a_checkpoint_that_does_not_exist_is_refused(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, request={"resume_from_checkpoint": str(tmp_path / "checkpoint-9")})
    with pytest.raises(OutputError, match="There is no checkpoint"):
        find_checkpoint(plan.request, tmp_path)


def test_a_checkpoint_holds_no_empty_model_card(whole):
    assert not list(whole[1].glob("checkpoint-*/README.md"))


def test_a_full_disk_is_told_before_the_checkpoint_and_names_the_last_good_one(whole):
    with pytest.raises(OutputError, match="checkpoint-8") as caught:
        require_free_bytes(whole[1], 1 << 60)
    assert "resume_from_checkpoint auto" in caught.value.fix
    require_free_bytes(whole[1], 1)


def auto(model, folder):
    return a_plan(model, schedule=SCHEDULE, request={"resume_from_checkpoint": "auto"})


def test_a_damaged_checkpoint_is_kept_beside_the_one_that_takes_its_place(tiny_qwen2, whole, copy):
    delete(copy / "checkpoint-8" / "optimizer.pt")
    before = {p.name: p.read_bytes() for p in (copy / "checkpoint-8").iterdir()}
    found, notes = find_checkpoint(auto(tiny_qwen2, copy).request, copy)
    assert "It is kept (checkpoint-8.aside" in notes[0]
    resumed = run(auto(tiny_qwen2, copy), copy, found)
    assert losses(resumed) == losses(whole[0])
    assert damage(copy / "checkpoint-8") is None
    assert {p.name: p.read_bytes() for p in (copy / "checkpoint-8.aside").iterdir()} == before


def test_a_damaged_checkpoint_does_not_count_among_those_kept(tiny_qwen2, copy):
    flip_a_byte(copy / "checkpoint-8" / "adapter_model.safetensors")
    delete(copy / "checkpoint-6" / "scheduler.pt")
    run(a_plan(tiny_qwen2, schedule={"max_steps": 5, "save_steps": 5}), copy, copy / "checkpoint-4")
    assert (copy / "checkpoint-6").is_dir(), "damaged: nobody's to delete"
    assert newest_whole(copy, up_to=5)[0] == copy / "checkpoint-5"


@pytest.mark.parametrize("name", [".checkpoint.partial", ".checkpoint.old", ".result.partial"])
def test_what_a_killed_run_was_writing_is_cleared_away(tiny_qwen2, copy, name):
    from adaptft.training import folders

    (copy / name / "checkpoint-9").mkdir(parents=True)
    assert find_checkpoint(auto(tiny_qwen2, copy).request, copy)[0] == copy / "checkpoint-8"
    folders.claim(auto(tiny_qwen2, copy), copy)
    assert not (copy / name).exists()
