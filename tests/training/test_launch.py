"""A plan runs on its own machine, in its own folder, in one process or several."""

import dataclasses
from pathlib import Path

import pytest
from training_plans import CPU_ONLY, a_gpu, a_plan

from adaptft import artifacts
from adaptft.errors import DoesNotFit, MachineError, OutputError
from adaptft.facts import Link
from adaptft.plans import Placement
from adaptft.training import folders, train
from adaptft.training.launch import require_planned_machine
from adaptft.training.workers import announcement, needs_workers, visible_devices, worker_command, worker_environment

TWO_RANKS = {"data_parallel_size": 2, "micro_batch_size": 1, "global_batch_size": 2}


def with_gpus(*gpus):
    return dataclasses.replace(CPU_ONLY, gpus=gpus)


def a_gpu_plan(tiny_qwen2, *indices, machine=None, strategy="single"):
    machine = machine or with_gpus(*(a_gpu(i) for i in range(4)))
    placement = Placement(strategy=strategy, gpu_indices=indices)
    size = {"data_parallel_size": len(indices), "micro_batch_size": 1, "global_batch_size": len(indices)}
    batch = size if strategy == "ddp" else {}
    return a_plan(tiny_qwen2, machine=machine, placement=placement, batch=batch)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (with_gpus(a_gpu(name="NVIDIA A10")), None),
        (with_gpus(a_gpu(name="NVIDIA A10", memory_total_bytes=int((24 << 30) * 0.99))), None),
        (with_gpus(a_gpu(name="Tesla T4")), "GPU 0 is a NVIDIA A10 there, and Tesla T4 here"),
        (with_gpus(a_gpu(name="NVIDIA A10", memory_total_bytes=12 << 30)), "GPU 0 is a NVIDIA A10 there"),
        (with_gpus(), "no such GPU here"),
    ],
)
def test_a_plan_for_another_machine_is_refused(tiny_qwen2, here, said):
    plan = a_gpu_plan(tiny_qwen2, 0)
    if said is None:
        require_planned_machine(plan, here)
        return
    with pytest.raises(MachineError, match=said) as caught:
        require_planned_machine(plan, here)
    assert str(caught.value).count("\n") == 1, "two lines"


def test_gpus_the_plan_leaves_alone_may_differ(tiny_qwen2):
    require_planned_machine(a_gpu_plan(tiny_qwen2, 0), with_gpus(a_gpu(0), a_gpu(1, name="Tesla T4")))


def test_one_process_on_the_first_gpu_needs_no_workers_and_all_else_does(tiny_qwen2):
    assert not needs_workers(a_plan(tiny_qwen2))
    assert not needs_workers(a_gpu_plan(tiny_qwen2, 0))
    assert needs_workers(a_gpu_plan(tiny_qwen2, 3))
    assert needs_workers(a_gpu_plan(tiny_qwen2, 0, 1, strategy="ddp"))


def test_the_worker_command_is_torchrun_with_one_process_a_rank(tiny_qwen2, tmp_path):
    command = worker_command(a_gpu_plan(tiny_qwen2, 0, 1, strategy="ddp"), Path("plan.json"), tmp_path, python="python")
    assert command == [
        "python", "-m", "adaptft.training.elastic", "endings.json", "--standalone", "--nproc-per-node=2",
        "-m", "adaptft.training.worker", "plan.json", str(tmp_path),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("indices", "inherited", "shown"),
    [((0, 1), None, "0,1"), ((3,), None, "3"), ((1,), "4,6", "6"), ((0, 1), "GPU-a,GPU-b", "GPU-a,GPU-b")],
)
def test_workers_see_the_planned_gpus_only(indices, inherited, shown):
    assert visible_devices(Placement(strategy="ddp", gpu_indices=indices), inherited) == shown


def linked(*links):
    machine = with_gpus(*(a_gpu(i) for i in range(4)))
    return dataclasses.replace(machine, links=tuple(Link(a=a, b=b, path="PHB", peer_access=ok) for a, b, ok in links))


@pytest.mark.parametrize(
    ("links", "inherited", "expected"),
    [
        ([(0, 1, False)], {}, "1"),
        ([(0, 1, True), (1, 2, False)], {}, None),
        ([(0, 1, None)], {}, None),
        ([(0, 1, False)], {"NCCL_P2P_DISABLE": "0"}, "0"),
    ],
    ids=["refused by the driver", "refused between others", "not known", "set from outside"],
)
def test_nccl_copies_through_the_host_where_the_driver_refuses_peers(tiny_qwen2, links, inherited, expected):
    plan = a_gpu_plan(tiny_qwen2, 0, 1, machine=linked(*links), strategy="ddp")
    environment = worker_environment(plan, None, inherited)
    assert environment.get("NCCL_P2P_DISABLE") == expected
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    said = announcement(plan, environment)
    assert said[0] == "2 ranks, ddp; one that does not answer for 30 min 00 s ends the run."
    refused = f"GPUs 0 and 1 cannot reach each other's memory: NCCL_P2P_DISABLE={expected}."
    assert said[1:] == ([refused] if expected else [])


def test_ranks_on_the_cpu_keep_the_environment(tiny_qwen2):
    plan = a_plan(tiny_qwen2, placement=Placement(strategy="ddp", gpu_indices=(0, 1)), batch=TWO_RANKS)
    assert worker_environment(plan, None, {"HOME": "/root"}) == {"HOME": "/root"}


def test_a_plan_that_does_not_fit_is_not_started(tiny_qwen2, tmp_path):
    with pytest.raises(DoesNotFit):
        train(dataclasses.replace(a_plan(tiny_qwen2), fits=False), tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing half-written"


@pytest.mark.parametrize("trace", ["plan.json", "report.json", artifacts.FILE_NAME, "checkpoint-4"])
def test_a_folder_with_another_run_is_refused_whatever_is_left_of_it(tiny_qwen2, tmp_path, trace):
    (tmp_path / trace).mkdir() if trace.startswith("checkpoint") else (tmp_path / trace).write_text("{}")
    with pytest.raises(OutputError, match="holds another run") as caught:
        folders.check(a_plan(tiny_qwen2).request, tmp_path)
    assert "overwrite_output_dir" in caught.value.fix
    folders.check(a_plan(tiny_qwen2, request={"resume_from_checkpoint": "auto"}).request, tmp_path)
    assert (tmp_path / trace).exists()


def test_overwriting_deletes_the_run_and_nobody_elses_files(tiny_qwen2, tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    for name in ("plan.json", "adapter_model.safetensors", "notes.txt"):
        (tmp_path / name).write_text("{}")
    plan = a_plan(tiny_qwen2, request={"overwrite_output_dir": True})
    folders.check(plan.request, tmp_path)
    folders.claim(plan, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "plan.json"]
    assert "overwrite_output_dir" in (tmp_path / "plan.json").read_text(), "the new plan"
    folders.release(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_in_the_place_of_the_folder_is_told(tiny_qwen2, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Cannot write"):
        folders.check(a_plan(tiny_qwen2).request, tmp_path / "file")


def test_a_result_appears_with_its_description_last(tmp_path):
    partial = tmp_path / folders.PARTIAL
    partial.mkdir()
    for name in (artifacts.FILE_NAME, "adapter_config.json", "zz"):
        (partial / name).write_text(name)
    folders.publish(partial, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter_config.json", artifacts.FILE_NAME, "zz"]
