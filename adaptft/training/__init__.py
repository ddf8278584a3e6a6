"""Carry a training plan out: ``train(plan, output_dir) -> RunReport``.

launch       this process, or one torchrun worker for each GPU, on every machine
workers      torchrun on this machine
seats        which of the machines this one is
meeting      what the machines of a run tell each other
watch        whether their run can go on, and whose fault it is where it cannot
table        where they do: keys and values that all of them see
rendezvous   how they find that table
heartbeat    who of them lives
agreement    what must be the same everywhere
run          the whole run, from the plan to the result folder
numerics     seeds, TF32, threads, allocator: the only writer of process-wide switches
rows         the data of a plan, tokenised, split, packed
batches      rows to micro-batches
adapters     LoRA on a base, with fp32 masters
checkpointing  which decoder layers recompute
losses       the planned loss as the model's forward
schedules    the learning rate of each step
trainer      transformers.Trainer with the plan's loss, batches and measurements
logged_steps  its part that measures steps, looks at their numbers and writes them down
resumable    its part that saves and goes on
parts        a micro-batch in smaller parts that give the same loss
stepping     forward and backward, again in smaller parts where memory runs out
preflight    the worst first: the largest batch, one evaluation, one save before step 1
guarding     an optimizer step only where the numbers are numbers
numbers      what they say: skip, go back, or stop with the likely cause
inspection   the rows of a bad step, written down
incidents    what went wrong and what was learned from it; goes with checkpoints
identity     what makes a run that run, compared before a checkpoint is gone on from
identification  the identity of the run that a plan makes of model and rows
checkpoints  when a checkpoint is whole, and which one a run goes on from
keeping      how one is written, whole or not at all, and which are kept
resuming     where a run begins: anew, from a checkpoint, from weights, again
disk_faults  what a file system refuses, in two lines
interruption  Ctrl-C and SIGTERM, and what is kept
watchdog     ends a process that was asked to end and is stuck
recovery     what stops a run, in two lines
results      the result folder
model_card   its README.md
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptft.plans import TrainPlan
    from adaptft.reports import RunReport
    from adaptft.training.meeting import Meeting


def train(plan: TrainPlan, output_dir: Path, meeting: Meeting | None = None) -> RunReport:
    """Train as ``plan`` says and leave the result in ``output_dir``.

    Where the plan is of several machines, ``meeting`` joins them (``meeting.meet``); without one they are joined here.
    The first machine's plan and folder are then the ones that count, whatever is given on the others.

    Raises:
        MachineError: the plan was made for another machine.
        RequestError: the run to go on with is another one; everything that differs is named.
        Interrupted: Ctrl-C or SIGTERM came; what is kept is in its text.
        OutputError: the folder holds another run, or the disk is too small.
        TrainingError: the run had to stop: out of memory, a loss that is not a number, nothing to train on.
        ModelError, DataError, MissingPackage: from the parts that find the model and read the data.
    """
    from adaptft.training.launch import launch

    return launch(plan, output_dir, meeting)
