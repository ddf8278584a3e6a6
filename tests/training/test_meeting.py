"""What machines tell each other before and while they run; each is a thread of this process."""

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from local_servers import free_port
from test_identity import IDENTITY
from training_plans import a_plan

from adaptft.errors import MachineError, TrainingError
from adaptft.requests import TrainRequest
from adaptft.training.agreement import Beginning, compare_beginnings, require_same_versions
from adaptft.training.meeting import meet
from adaptft.training.rendezvous import interface_to
from adaptft.training.seats import Seat


@pytest.fixture
def port():
    return free_port()


def request(rank, port, nodes=2, **wished):
    return TrainRequest(model="m", nnodes=nodes, node_rank=rank, master_addr="127.0.0.1", master_port=port, **wished)


def together(*machines):
    """Run one function for each machine, at once; what they return or raise."""
    with ThreadPoolExecutor(len(machines)) as pool:
        futures = [pool.submit(machine) for machine in machines]
        return [future.exception() or future.result() for future in futures]


def machine(rank, port, does, nodes=2, patience=20.0):
    def run():
        with meet(request(rank, port, nodes), {}, patience=patience) as meeting:
            return does(meeting)

    return run


def test_every_machine_obeys_the_first_ones_plan(tiny_qwen2, tmp_path, port):
    plan = a_plan(tiny_qwen2)
    other = replace(plan, warnings=("made on the second machine",))
    first = machine(0, port, lambda meeting: meeting.share(plan, tmp_path / "out"))
    second = machine(1, port, lambda meeting: meeting.share(other, tmp_path / "elsewhere"))
    assert together(first, second) == [(plan, tmp_path / "out")] * 2


def test_nobody_begins_before_all_have_said_that_they_can(port):
    agreed = []

    def late(meeting):
        time.sleep(1.0)
        agreed.append("late")
        meeting.agree()

    def early(meeting):
        meeting.agree()
        agreed.append("early")

    assert together(machine(0, port, early), machine(1, port, late)) == [None, None]
    assert agreed == ["late", "early"]


def test_one_machine_that_cannot_ends_all_with_its_reason(port):
    def cannot(meeting):
        raise MachineError("GPU 0 is another one.", fix="Plan again.")

    waits = machine(0, port, lambda meeting: meeting.agree(), nodes=3)
    too = machine(1, port, lambda meeting: meeting.agree(), nodes=3)
    first, second, third = together(waits, too, machine(2, port, cannot, nodes=3))
    assert isinstance(third, MachineError)
    for error in (first, second):
        assert isinstance(error, TrainingError)
        assert error.problem == f"Machine 2 ({socket.gethostname()}) stopped: GPU 0 is another one."
        assert error.fix == "Plan again."


def test_a_machine_that_does_not_come_is_named(port):
    (error,) = together(machine(0, port, lambda meeting: meeting.agree(), patience=1.0))
    assert isinstance(error, MachineError)
    assert error.problem.startswith("Machine 1 did not come within 1.0 s")
    assert f"--node_rank 1; it must reach 127.0.0.1:{port}" in error.fix


def test_a_first_machine_that_is_not_there_is_waited_for_and_then_named(port):
    (error,) = together(machine(1, port, lambda meeting: None, patience=1.0))
    assert isinstance(error, MachineError)
    assert error.problem == f"The first machine was not reached at 127.0.0.1:{port} within 1.0 s: Connection refused."
    assert "--node_rank 0" in error.fix


def test_a_port_that_is_taken_is_said_at_once(port):
    with socket.socket() as other:
        other.bind(("", port))
        other.listen()
        (error,) = together(machine(0, port, lambda meeting: None))
    assert isinstance(error, MachineError)
    assert error.problem.startswith(f"Port {port} of this machine is taken")
    assert "--master_port" in error.fix


def test_two_machines_with_one_rank_are_told_apart(port):
    def stay(meeting):
        time.sleep(6.0)

    first, second, third = together(
        machine(0, port, stay), machine(1, port, stay), lambda: (time.sleep(1.5), machine(1, port, stay)())[1]
    )
    refused = [error for error in (second, third) if isinstance(error, MachineError)]
    assert len(refused) == 1
    assert refused[0].problem.startswith("node_rank 1 is taken")
    assert refused[0].fix == "Give every machine a --node_rank of its own."
    assert first is None, "the run goes on"


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_folder_is_shared_where_all_see_the_same_file(tmp_path, port, is_shared):
    (tmp_path / "local").mkdir()
    first = machine(0, port, lambda meeting: meeting.sees(tmp_path / "out"))
    there = tmp_path / ("out" if is_shared else "local")
    second = machine(1, port, lambda meeting: meeting.sees(there))
    assert together(first, second) == [is_shared, is_shared]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_machine_whose_process_vanishes_is_missed(port, monkeypatch):
    monkeypatch.setattr("adaptft.training.heartbeat.SILENCE_SECONDS", 3.0)

    def vanish(meeting):
        meeting._heartbeat.end()
        time.sleep(8.0)

    def look(meeting):
        with contextlib.suppress(TimeoutError):
            for _ in range(100):
                meeting.watch.look()
                time.sleep(0.1)

    first, _ = together(machine(0, port, look), machine(1, port, vanish))
    assert isinstance(first, TrainingError)
    assert "is gone: no sign of life for" in first.problem


def test_the_interface_to_this_machine_is_the_loopback():
    assert interface_to(Seat(nodes=2, rank=1, address="127.0.0.1", port=1)) == "lo"
    assert interface_to(Seat(nodes=2, rank=1, address="no.such.host.invalid", port=1)) is None


def test_versions_that_differ_are_named_with_the_line_that_mends_them():
    require_same_versions({"torch": "2.11"}, {"torch": "2.11"}, "Machine 0")
    with pytest.raises(MachineError, match=r"torch 2.11 there, 2.13 here; peft missing there, 0.21 here") as caught:
        require_same_versions({"torch": "2.11"}, {"torch": "2.13", "peft": "0.21"}, "Machine 0")
    assert caught.value.fix.endswith("pip install torch==2.11")


@pytest.mark.parametrize(
    ("changed", "checkpoint", "said"),
    [
        ({}, "checkpoint-4", None),
        ({}, None, "Rank 0 (a) would go on from checkpoint-4, and rank 1 (b) from no checkpoint."),
        ({"rows_hash": "22"}, "checkpoint-4", "Rank 1 (b) has another data set than rank 0 (a)."),
        ({"model_fingerprint": "bb"}, "checkpoint-4", "Rank 1 (b) has another model than rank 0 (a)."),
    ],
)
def test_ranks_that_would_not_begin_alike_do_not_begin(changed, checkpoint, said):
    first = Beginning(identity=IDENTITY, checkpoint="checkpoint-4", host="a")
    second = Beginning(identity=replace(IDENTITY, **changed), checkpoint=checkpoint, host="b")
    if said is None:
        compare_beginnings([first, second])
        return
    with pytest.raises(TrainingError) as caught:
        compare_beginnings([first, second])
    assert caught.value.problem == said
