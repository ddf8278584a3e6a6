"""A process that is asked to end and is stuck ends all the same, and says what is kept and where it stood."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUCK = """
import ctypes, sys, time
from pathlib import Path
from adaptft.training import interruption, watchdog
interruption.GRACE_SECONDS, watchdog.END_SECONDS, watchdog.SAVE_SECONDS = 1.0, 0.5, 2.0

def hang_in_c():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # the second time it waits for itself; no signal wakes it
        ctypes.CDLL(None).pthread_mutex_lock(mutex)

with interruption.told(Path("out")), interruption.watched(Path("out")):
    if "kept" in sys.argv:
        interruption.kept(Path("out/checkpoint-4"))
    with interruption.finishing_steps():
        print("ready", flush=True)
        while "saves" in sys.argv and not interruption.requested():
            time.sleep(0.01)
        if "saves" in sys.argv:
            interruption.arrived()
        hang_in_c()
"""


def stuck(*words, signals=1):
    """Status and lines on stderr of a process whose main thread is in C code, and its seconds from the first signal."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, *words], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        begin = time.monotonic()
        for _ in range(signals):
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=30)[1]
    return process.returncode, errors.strip().splitlines(), time.monotonic() - begin


@pytest.mark.parametrize(
    ("words", "signals", "least_seconds", "last"),
    [
        (("kept",), 1, 1.5, "Ended: it was asked to end, and did not. The last good checkpoint is out/checkpoint-4; "
         "go on with the same command and --resume_from_checkpoint auto --output_dir out"),
        ((), 2, 0.5, "Ended: it was asked to end, and did not. There was no checkpoint yet: start the run again."),
        (("kept", "saves"), 1, 2.0, "Ended: its files took more than 2 s. The last good"),
        ((), 3, 0.0, "Ended: it was asked to end, and did not."),
    ],
    ids=["one signal: the grace", "two: the time to tidy up", "a save that hangs", "three: at once"],
)  # fmt: skip
def test_a_stuck_process_ends_and_says_what_is_kept(words, signals, least_seconds, last):
    status, lines, seconds = stuck(*words, signals=signals)
    assert status == 130
    assert lines[0] == "Stopping after this step, within 1 s, with a checkpoint; once more to stop at once."
    assert any("in hang_in_c" in line for line in lines), "the stack of the thread that is stuck"
    assert lines[-1].startswith(last)
    assert least_seconds <= seconds < least_seconds + 5


FORKS = """
import os, signal, sys, time
from pathlib import Path
from adaptft.training import interruption, watchdog
watchdog.END_SECONDS = 0.2
with interruption.told(Path("out")), interruption.watched(Path("out")), interruption.finishing_steps():
    if not (child := os.fork()):
        os.kill(os.getpid(), signal.SIGTERM)  # as a terminal's Ctrl-C reaches a worker that reads data
        os._exit(0)
    os.waitpid(child, 0)
    signal.raise_signal(signal.SIGTERM)
    time.sleep(1.0)
    print("one signal counts once")
"""


def test_a_signal_to_a_forked_worker_does_not_count(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == "one signal counts once\n", done.stderr
