"""A run of several machines: processes of this one that meet over the network, one rank each."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess

import pytest
from local_servers import free_port
from several_machines import start, until
from training_plans import a_plan

from adaptft.plans import Placement
from adaptft.records import from_dict
from adaptft.reports import RunReport
from adaptft.training import train
from adaptft.training.checkpoints import SEAL, checkpoint_folders


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"instruction": f"{n} + {n}?", "output": f"{n + n}."}) for n in range(40)))
    return path


def planned(model, rows, *, nodes=2, steps=4, request=None, save_steps=0, micro=2):
    one = {"dataset": (str(rows),), "report_to": ("none",), "truncation_strategy": "right"}
    several = {"nnodes": nodes, "master_addr": "127.0.0.1", "master_port": free_port()} if nodes > 1 else {}
    return a_plan(
        model,
        request=one | several | (request or {}),
        placement=Placement(strategy="cpu", nodes=nodes),
        batch={"micro_batch_size": 2 * micro // nodes, "data_parallel_size": nodes, "global_batch_size": 2 * micro},
        schedule={"max_steps": steps, "save_steps": save_steps},
        optimizer={"learning_rate": 1e-4},
    )


def report_of(machine):
    return from_dict(RunReport, json.loads(machine.output))


@pytest.mark.slow
def test_two_machines_train_to_the_losses_of_one(tiny_qwen2, rows, tmp_path):
    alone = train(planned(tiny_qwen2, rows, nodes=1), tmp_path / "alone")
    plan = planned(tiny_qwen2, rows)
    machines = [start(plan, tmp_path, rank, tmp_path / "out") for rank in (0, 1)]
    assert [machine.status() for machine in machines] == [0, 0], [machine.errors for machine in machines]
    together, told = map(report_of, machines)
    assert [s.loss for s in together.steps] == pytest.approx([s.loss for s in alone.steps], rel=1e-4)
    assert [s.num_tokens for s in together.steps] == [s.num_tokens for s in alone.steps]
    assert told == together, "every machine has the first one's report"
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


def saved(out):
    return list(out.glob(f"checkpoint-*/{SEAL}"))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_machine_that_is_lost_ends_the_others_within_a_minute(tiny_qwen2, rows, tmp_path, lost):
    plan = planned(tiny_qwen2, rows, steps=5000, save_steps=2)
    machines = [start(plan, tmp_path, rank, tmp_path / "out") for rank in (0, 1)]
    until(lambda: saved(tmp_path / "out"))
    machines[lost].lose()
    left = machines[1 - lost]
    assert left.status(60) == 1
    problem, fix = left.errors[-2:]
    assert "is gone" in problem
    assert ("The first machine" if lost == 0 else "Machine 1 (") in problem
    assert "--resume_from_checkpoint auto" in fix


@pytest.mark.slow
def test_a_machine_that_cannot_begin_is_named_on_all_of_them(tiny_qwen2, rows, tmp_path):
    plan = planned(tiny_qwen2, rows)
    other = dataclasses.replace(plan, request=dataclasses.replace(plan.request, dataset=(str(rows),)))
    rows_there = tmp_path / "there.jsonl"
    rows_there.write_text("")
    first = start(plan, tmp_path, 0, tmp_path / "out")
    second = start(dataclasses.replace(other, fits=False), tmp_path, 1, tmp_path / "out", "other.json")
    assert (first.status(), second.status()) == (1, 3)
    assert first.errors[-2].startswith("Error: Machine 1 (")
    assert first.errors[-2].endswith("stopped: The plan does not fit its machine.")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_signal_to_one_machine_stops_all_behind_the_same_step(tiny_qwen2, rows, tmp_path):
    out = tmp_path / "out"
    plan = planned(tiny_qwen2, rows, steps=5000, save_steps=2)
    machines = [start(plan, tmp_path, rank, out) for rank in (0, 1)]
    until(lambda: saved(out))
    machines[1].process.send_signal(signal.SIGTERM)
    assert [machine.status(60) for machine in machines] == [0, 0], [machine.errors for machine in machines]
    assert machines[0].errors[-1].startswith(f"Stopped and saved: {checkpoint_folders(out)[0]} holds every step")
    assert machines[1].errors[-1].startswith("Stopped with Machine 0 (")


@pytest.mark.long
def test_a_lost_machine_that_comes_back_goes_on_with_the_run(tiny_qwen2, rows, tmp_path):
    out = tmp_path / "out"
    alone = train(planned(tiny_qwen2, rows, nodes=1, steps=30), tmp_path / "alone")
    plan = planned(tiny_qwen2, rows, steps=30, save_steps=5, request={"max_restarts": 1})
    first, second = (start(plan, tmp_path / "cut", rank, out) for rank in (0, 1))
    until(lambda: saved(out))
    second.lose()
    back = start(plan, tmp_path / "back", 1, out)
    assert (first.status(), back.status()) == (0, 0), (first.errors, back.errors)
    steps = report_of(first).steps
    assert [s.step for s in steps] == [s.step for s in alone.steps]
    losses = [s.loss for s in alone.steps]
    assert [s.loss for s in steps] == pytest.approx(losses, rel=1e-5), "the same rows in every global batch"


@pytest.fixture
def two_networks():
    """Two network namespaces with a cable between them: machines that share no port, no loopback and no address."""
    names = [f"adaptft-{os.getpid()}-{end}" for end in "ab"]
    commands = [f"ip netns add {name}" for name in names]
    commands += [f"ip link add a{os.getpid()} netns {names[0]} type veth peer name b{os.getpid()} netns {names[1]}"]
    for end, name in zip("ab", names, strict=True):
        commands += [
            f"ip -n {name} addr add 10.77.0.{1 + (end == 'b')}/24 dev {end}{os.getpid()}",
            f"ip -n {name} link set lo up", f"ip -n {name} link set {end}{os.getpid()} up",
        ]  # fmt: skip
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("ip") is None or os.geteuid() != 0, reason="needs root and iproute2")
def test_machines_on_two_networks_train_and_one_that_is_cut_off_is_missed(tiny_qwen2, rows, tmp_path, two_networks):
    out = tmp_path / "out"
    plan = planned(tiny_qwen2, rows, steps=5000, save_steps=2, request={"master_addr": "10.77.0.1"})
    prefixes = [("ip", "netns", "exec", name) for name in two_networks]
    machines = [start(plan, tmp_path, rank, out, prefix=prefix) for rank, prefix in enumerate(prefixes)]
    until(lambda: saved(out))
    cable = f"ip -n {two_networks[1]} link set b{os.getpid()} down"
    subprocess.run(cable.split(), check=True)
    assert [machine.status(60) for machine in machines] == [1, 1]
    assert "Machine 1 (" in machines[0].errors[-2]
    assert "is gone: no sign of life for 20" in machines[0].errors[-2]
    assert machines[1].errors[-2] == (
        f"Error: The first machine (10.77.0.1:{plan.request.master_port}) is gone, and the run with it."
    )
