"""A plan as an sbatch script: one adaptft a machine, which starts the ranks there."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from adaptft.jobs.job import Job, head, script_lines

GRACE_SECONDS = 300
"""So long before the time limit Slurm sends SIGTERM: a step ends and a checkpoint is written."""
FIRST_PORT, NUM_PORTS = 20000, 20000
"""A port of the job's own, so that two jobs on one machine do not meet."""
MACHINES = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(({first} + SLURM_JOB_ID % {number}))
"""
BODY = """\
trap : TERM  # Slurm tells the ranks, which save and end; this script waits for them

{machines}srun --kill-on-bad-exit=1 {command}
status=$?

if [ "$status" -eq 0 ] && [ ! -e {finished} ]; then
    echo "Stopped before the end with a checkpoint: queued again to go on from it."
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def sbatch_script(
    job: Job, *, time: str | None = None, directives: Iterable[str] = (), setup: Iterable[str] = ()
) -> str:
    """The whole file.

    Args:
        time: the time limit as Slurm writes it; the plan's where it is None.
        directives: more of sbatch's options, without the dashes: ``partition=gpu``.
        setup: shell lines that make ``adaptft`` available on the machines.
    """
    limit = time or (None if job.limit_seconds is None else slurm_time(job.limit_seconds))
    options = [
        f"job-name={job.name}",
        f"nodes={job.nodes}",
        "ntasks-per-node=1",
        *([f"gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []),
        *([f"time={limit}"] if limit else []),
        "output=%x-%j.out",
        "open-mode=append",
        "requeue",
        f"signal=TERM@{GRACE_SECONDS}",
        *directives,
    ]
    begin = ["#!/bin/bash", *head(job).splitlines(), *(f"#SBATCH --{option}" for option in options)]
    lines = [*script_lines(job.words), *_place(job)]
    machines = MACHINES.format(first=FIRST_PORT, number=NUM_PORTS) if job.nodes > 1 else ""
    body = BODY.format(machines=machines, command=" \\\n    ".join(lines), finished=quote(job.finished_file))
    return "\n".join([*begin, "", *setup, body])


def _place(job: Job) -> list[str]:
    """Which of the machines one is, Slurm says itself (SLURM_NODEID)."""
    if job.nodes == 1:
        return []
    return ['--nnodes "$SLURM_JOB_NUM_NODES"', '--master_addr "$first"', '--master_port "$port"']


def slurm_time(seconds: int) -> str:
    """``2-03:10:00``.

    >>> slurm_time(5400), slurm_time(184200)
    ('01:30:00', '2-03:10:00')
    """
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
