"""Which of the machines this one is, from options and from what schedulers set."""

import pytest

from adaptft.errors import RequestError
from adaptft.requests import TrainRequest
from adaptft.training.seats import Seat, find_seat

TWO = {"nnodes": 2, "node_rank": 1, "master_addr": "gpu-a"}
SECOND = Seat(nodes=2, rank=1, address="gpu-a", port=29500)


def seat(environment=None, **wished):
    return find_seat(TrainRequest(model="m", **wished), environment or {})


@pytest.mark.parametrize("wished", [{}, {"nnodes": 1}, {"nnodes": 1, "node_rank": 0}])
def test_a_run_of_one_machine_has_no_seats(wished):
    assert seat({"MASTER_ADDR": "left over", "RANK": "0", "SLURM_NODEID": "0"}, **wished) is None


@pytest.mark.parametrize(
    ("wished", "environment", "expected"),
    [
        (TWO, {}, SECOND),
        (TWO, {"SLURM_NODEID": "0", "MASTER_ADDR": "other"}, SECOND),
        ({"nnodes": 2, "master_addr": "gpu-a"}, {"SLURM_NODEID": "1"}, SECOND),
        ({"nnodes": 2}, {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "gpu-a", "PET_MASTER_PORT": "29500"}, SECOND),
        ({"nnodes": 2}, {"PET_NODE_RANK": "1", "RANK": "1", "MASTER_ADDR": "gpu-a", "MASTER_PORT": "29500"}, SECOND),
    ],
    ids=["options", "options before a scheduler", "Slurm", "Kubeflow Trainer", "PyTorchJob"],
)
def test_a_seat_is_what_was_said_or_what_the_scheduler_says(wished, environment, expected):
    assert seat(environment, **wished) == expected


def test_the_first_machine_is_the_one_with_rank_0():
    assert seat(nnodes=2, node_rank=0, master_addr="gpu-a").is_first
    assert not SECOND.is_first
    assert Seat(nodes=2, rank=0, address="fe80::1", port=1).endpoint == "[fe80::1]:1"


@pytest.mark.parametrize(
    ("wished", "environment", "problem", "fix"),
    [
        (TWO | {"node_rank": 2}, {}, "node_rank 2 is beyond the 2 machines", "--node_rank 0 to 1"),
        ({"nnodes": 2, "master_addr": "h"}, {}, "which of the machines", "--node_rank 0 on the machine that"),
        ({"nnodes": 2, "node_rank": 0}, {}, "where the first machine is", "hostname -f"),
        ({"nnodes": 2, "node_rank": 0}, {"SLURM_JOB_NODELIST": "a"}, "where the first machine is", "scontrol show"),
        ({"node_rank": 1}, {}, "--node_rank 1: for several machines", "Add --nnodes N"),
        ({"master_addr": "gpu a"}, {}, "--master_addr 'gpu a': for several", "leave it out"),
        ({"max_restarts": 2}, {}, "--max_restarts 2: for several", "leave it out"),
        ({}, {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "RANK": "3"}, "torchrun started this process (rank 3)",
         "without torchrun"),
        ({}, {"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NUM_NODES": "2"}, "srun started 16 processes on 2 machines",
         "--ntasks-per-node=1"),
        ({}, {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}, "started on 2 machines", "Add --nnodes 2"),
        ({"nnodes": 4}, {"PET_NNODES": "2"}, "started on 2 machines (PET_NNODES), and nnodes is 4", "Add --nnodes 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_two_lines(wished, environment, problem, fix):
    with pytest.raises(RequestError) as caught:
        seat(environment, **wished)
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert str(caught.value).count("\n") == 1
