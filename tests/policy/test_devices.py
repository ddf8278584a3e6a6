"""Where everything but training runs, and in which type."""

from __future__ import annotations

import pytest
from policy_machines import machine

from adaptft.errors import MachineError
from adaptft.policy.devices import choose_device, inference_dtype


@pytest.mark.parametrize(
    ("gpus", "device", "dtype", "reason"),
    [
        ((), "cpu", "fp32", "fp32 on the CPU"),
        (("a10",), "cuda", "bf16", "every GPU of this machine has bf16"),
        (("a10", "t4"), "cuda", "fp16", "a GPU of this machine lacks bf16"),
    ],
)
def test_the_type_is_one_that_every_device_multiplies(gpus, device, dtype, reason):
    chosen = choose_device(machine(*gpus), None)
    found = inference_dtype(machine(*gpus), chosen.value)
    assert (chosen.value, found.value) == (device, dtype)
    assert found.reason.startswith(reason)


def test_a_device_that_was_asked_for_is_taken_or_refused():
    assert (choose_device(machine("a10"), "cpu").value, choose_device(machine("a10"), "cpu").source) == ("cpu", "user")
    with pytest.raises(MachineError, match="--device cuda was asked for"):
        choose_device(machine(), "cuda")
