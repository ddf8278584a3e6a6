"""adaptft launch."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adaptft.cli.options import RequestCommand, machine_option, options_in_order
from adaptft.cli.plan import GPU_OPTIONS
from adaptft.errors import RequestError
from adaptft.parsing import Parsed
from adaptft.requests import TrainRequest

if TYPE_CHECKING:
    from adaptft.facts import Machine
    from adaptft.jobs import Job

EXAMPLE = """\
adaptft launch slurm recipes/qwen2.5-7b-lora.yaml --nnodes 2 --gpu h100 --gpus 8 -o job.sbatch
adaptft launch kubernetes recipes/qwen2.5-7b-lora.yaml --gpu a100-80g --gpus 8 --image IMAGE --claim data -o job.yaml
adaptft launch ray recipes/qwen2.5-7b-lora.yaml --gpu l4 --gpus 4 -o job.py"""
FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Scheduler:
    """How the file for a scheduler is written, which options it knows, and the command that submits it."""

    write: Callable[[Job, dict[str, Any]], str]
    options: frozenset[str]
    submit: Callable[[Path], str]
    ending: str


def _slurm(job: Job, given: dict[str, Any]) -> str:
    from adaptft.jobs.slurm import sbatch_script

    return sbatch_script(job, time=given["time"], directives=given["sbatch"], setup=given["setup"])


def _kubernetes(job: Job, given: dict[str, Any]) -> str:
    from adaptft.jobs.kubernetes import Pod, manifest

    optional = {"shared_memory": given["shm"], "cpus": given["cpus"], "memory": given["memory"]}
    pod = Pod(
        image=given["image"], claim=given["claim"], mount=given["mount"] or MOUNT,
        **{name: str(value) for name, value in optional.items() if value is not None},
    )  # fmt: skip
    return manifest(job, pod, given["kind"] or "TrainJob", given["namespace"])


def _ray(job: Job, given: dict[str, Any]) -> str:
    from adaptft.jobs.ray import driver

    return driver(job, cpus=given["cpus"] or 1)


def _submit_to_ray(file: Path) -> str:
    return f"ray job submit --working-dir {shlex.quote(str(file.parent))} -- python {shlex.quote(file.name)}"


MOUNT = "/data"
SCHEDULERS = {
    "slurm": Scheduler(
        _slurm, frozenset({"time", "sbatch", "setup"}), lambda file: f"sbatch {shlex.quote(str(file))}", ".sbatch"
    ),
    "kubernetes": Scheduler(
        _kubernetes,
        frozenset({"kind", "image", "claim", "mount", "namespace", "shm", "cpus", "memory"}),
        lambda file: f"kubectl apply -f {shlex.quote(str(file))}",
        ".yaml",
    ),
    "ray": Scheduler(_ray, frozenset({"cpus"}), _submit_to_ray, ".py"),
}

_OPTIONS = (
    click.option("--output", "-o", "file", metavar="FILE", type=FILE, help="Write the job there; default: print it."),
    *GPU_OPTIONS,
    click.option("--time", metavar="TIME", help="Slurm: time limit; default: 1.5 times the prediction, and 30 min."),
    click.option("--sbatch", metavar="OPTION", multiple=True, help="Slurm: one more directive, partition=gpu; repeat."),
    click.option("--setup", metavar="LINE", multiple=True, help="Slurm: a shell line before the run; may be repeated."),
    click.option("--kind", type=click.Choice(["TrainJob", "PyTorchJob"]), help="Kubernetes: which job of Kubeflow."),
    click.option("--image", metavar="NAME", help="Kubernetes: container image that has adaptft."),
    click.option("--claim", metavar="NAME", help="Kubernetes: volume claim, shared by all pods, for data and results."),
    click.option("--mount", metavar="DIR", help=f"Kubernetes: where pods see the claim; default: {MOUNT}."),
    click.option("--namespace", metavar="NAME", help="Kubernetes: namespace of the job."),
    click.option("--shm", metavar="SIZE", help="Kubernetes: size of /dev/shm; default: 16Gi."),
    click.option("--cpus", metavar="N", type=int, help="Kubernetes and Ray: CPUs set aside on each machine."),
    click.option("--memory", metavar="SIZE", help="Kubernetes: memory limit of a pod."),
)  # fmt: skip


class LaunchCommand(RequestCommand):
    """A request command whose first word is a scheduler."""

    def invoke(self, ctx: click.Context) -> Any:
        """Take the scheduler out of the words."""
        words: tuple[str, ...] = ctx.params["words"]
        if not words or words[0] not in SCHEDULERS:
            named = f"{words[0]} is no scheduler" if words else "Nothing says for which scheduler"
            raise RequestError(
                f"{named} that adaptft writes jobs for.",
                fix=f"Begin with one of {', '.join(SCHEDULERS)}: adaptft launch slurm RECIPE.yaml",
            )
        ctx.params["words"] = words[1:]
        ctx.params["scheduler"] = words[0]
        return super().invoke(ctx)


@click.command(
    cls=LaunchCommand, kind=TrainRequest, example=EXAMPLE, positional="slurm|kubernetes|ray [RECIPE.yaml]", alone=()
)
@machine_option
@options_in_order(_OPTIONS)
def command(parsed: Parsed[TrainRequest], scheduler: str, file: Path | None, **given: Any) -> None:
    """Write the job that has Slurm, Kubernetes or Ray carry a plan out.

    Plans as adaptft plan does, for the GPUs that --gpu and --gpus name (on each of --nnodes machines), and writes the
    job. It saves when it is told to stop, and goes on from its last checkpoint when it is started again.
    """
    from adaptft.cli.planning import plan_on, read_subject, refuse_unfit
    from adaptft.cli.where import Where
    from adaptft.jobs import job_of
    from adaptft.writable import check_file

    _check_options(scheduler, given)
    if file is not None:
        check_file(file, option="-o")
    names = ("machine_file", "gpu", "gpu_file", "gpus", "joined")
    where = Where(**{name: given.pop(name) for name in names})
    where.check()
    machine = where.one(parsed.request)
    _check_machine(machine, parsed.request)
    plan = plan_on(machine, read_subject(parsed)).plan
    refuse_unfit(plan)
    mount = given["mount"] or MOUNT
    job = job_of(plan, folder=f"{mount}/output" if scheduler == "kubernetes" else "output")
    _check_folder(scheduler, job, mount)
    text = SCHEDULERS[scheduler].write(job, given)
    _tell(scheduler, job, plan.warnings, file)
    if file is None:
        click.echo(text, nl=False)
    else:
        file.write_text(text, encoding="utf-8")


def _check_options(scheduler: str, given: dict[str, Any]) -> None:
    """Refuse another scheduler's options, and a pod without what it needs.

    Raises:
        RequestError: names them.
    """
    for other, its in SCHEDULERS.items():
        foreign = [name for name in sorted(its.options - SCHEDULERS[scheduler].options) if given[name]]
        if foreign:
            raise RequestError(f"--{foreign[0]} is for {other}, and this job is for {scheduler}.", fix="Leave it out.")
    needs = {"image": "container image has adaptft", "claim": "volume keeps what the pods write"}
    for name in needs if scheduler == "kubernetes" else ():
        if not given[name]:
            raise RequestError(f"Nothing says which {needs[name]}.", fix=f"Add --{name} NAME.")


def _check_machine(machine: Machine, request: TrainRequest) -> None:
    """Raises ``RequestError`` on a login node: the job would be for its CPU."""
    if not machine.gpus and request.device != "cpu":
        raise RequestError(
            "This machine has no GPU, and nothing says which ones the job gets.",
            fix="Name those of the cluster: --gpu h100 --gpus 8; or take its CPUs: --device cpu.",
        )


def _check_folder(scheduler: str, job: Job, mount: str) -> None:
    """Raises ``RequestError`` where the result would be lost with the pod."""
    if scheduler == "kubernetes" and not job.output_dir.startswith(f"{mount.rstrip('/')}/"):
        raise RequestError(
            f"output_dir {job.output_dir} is lost with the pods: they keep what is under {mount}.",
            fix=f"Use --output_dir {mount.rstrip('/')}/{job.name}, or leave it out.",
        )


def _tell(scheduler: str, job: Job, warnings: tuple[str, ...], file: Path | None) -> None:
    """The plan in short and how to submit the job; on stderr where the job itself is printed."""
    for line in (*job.summary[:-1], *(f"! {warning}" for warning in warnings)):
        click.echo(line, err=file is None)
    its = SCHEDULERS[scheduler]
    if file is not None:
        click.echo(f"Job:    {file}")
    click.echo(f"Submit: {its.submit(file or Path(f'{job.name}{its.ending}'))}", err=file is None)
