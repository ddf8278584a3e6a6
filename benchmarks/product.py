"""What the benchmarks share: adaptft run as a user would type it, under a stopwatch, and results that survive a cut."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

GIB = 2**30
POLL_SECONDS = 0.1
TAIL = 2000
OUR_FIRST_STEP = re.compile(r"^step \d+/\d+: loss", re.M)


class Failed(Exception):
    """A command that did not end well; the message holds the end of what it said."""


@dataclass(frozen=True, slots=True)
class Run:
    """A training run that ended well; ``seconds_to_first_step`` counts from the command's start, imports and all."""

    plan: dict[str, Any]
    report: dict[str, Any]
    seconds_to_first_step: float | None

    @property
    def decisions(self) -> dict[str, Any]:
        """The values decided, without their reasons."""
        return {name: decision["value"] for name, decision in self.plan["decisions"].items()}


def adaptft(*words: str) -> str:
    """What ``adaptft WORDS`` prints.

    Raises:
        Failed: its status is not 0.
    """
    done = subprocess.run([sys.executable, "-m", "adaptft", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"adaptft {' '.join(words)}: status {done.returncode}\n{done.stdout[-TAIL:]}{done.stderr[-TAIL:]}")
    return done.stdout


def train(*words: str, folder: Path | None = None) -> Run:
    """``adaptft train WORDS`` into ``folder``, or into one that is gone afterwards; plan and report are kept.

    Raises:
        Failed: its status is not 0.
    """
    with tempfile.TemporaryDirectory() as scratch:
        result, log = folder or Path(scratch) / "run", Path(scratch) / "log"
        command = [sys.executable, "-m", "adaptft", "train", *words, "--output_dir", str(result)]
        with log.open("wb") as output:
            status, first = watch(command, log, OUR_FIRST_STEP, stdout=output, stderr=subprocess.STDOUT)
        if status:
            raise Failed(f"adaptft train {' '.join(words)}: status {status}\n{log.read_text(errors='replace')[-TAIL:]}")
        plan, report = (json.loads((result / name).read_text()) for name in ("plan.json", "report.json"))
    return Run(plan, report, first)


def watch(command: Sequence[str], log: Path, mark: re.Pattern[str], **how: Any) -> tuple[int, float | None]:
    """Run ``command``; -> its status, and the seconds until ``mark`` stood in ``log`` (None where it never did)."""
    begin, first = time.monotonic(), None
    with subprocess.Popen(command, **how) as process:
        while process.poll() is None:
            if first is None and log.exists() and mark.search(log.read_text(errors="replace")):
                first = time.monotonic() - begin
            time.sleep(POLL_SECONDS)
    return process.returncode, first


def machine_and_versions() -> tuple[dict[str, Any], dict[str, str]]:
    """Which hardware, without names and numbers of this one piece; and versions of all that matters."""
    probed = json.loads(adaptft("probe", "--json"))
    software = probed["software"]
    machine = {
        "gpus": [{"name": gpu["name"], "memory_bytes": gpu["memory_total_bytes"]} for gpu in probed["gpus"]],
        "cpu": probed["cpu"]["model_name"],
        "cores": probed["cpu"]["usable_cores"],
    }
    versions = {"python": software["python"], **software["packages"]}
    versions |= {name: software[name] for name in ("nvidia_driver", "torch_cuda") if software[name]}
    return machine, versions


@dataclass(slots=True)
class Record:
    """A JSON file that is written after each measurement, so that a call that is cut off loses its last one only."""

    path: Path
    content: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, date: str) -> Record:
        """The file as it is, or a new one; measurements of two machines do not mix."""
        machine, versions = machine_and_versions()
        record = cls(path, json.loads(path.read_text()) if path.exists() else {"date": date, "machine": machine})
        if record.content["machine"] != machine:
            sys.exit(f"{path} is of another machine ({record.content['machine']}): give another --out.")
        record.content["versions"] = record.content.get("versions", {}) | versions
        return record

    def part(self, name: str, empty: Any) -> Any:
        """A part of the content, made where it is not there yet."""
        return self.content.setdefault(name, empty)

    def save(self) -> None:
        """Write the file; a reader sees the old one or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(self.path)


@dataclass(slots=True)
class Deadline:
    """A call's share of time: nothing is begun after it."""

    minutes: float
    begin: float = field(default_factory=time.monotonic)

    @property
    def has_passed(self) -> bool:
        """True where it is time to stop."""
        return time.monotonic() - self.begin > 60 * self.minutes


def measure_missing(
    record: Record,
    deadline: Deadline,
    wanted: Iterable[dict[str, Any]],
    measure: Callable[[dict[str, Any]], dict[str, Any]],
    say: Callable[[dict[str, Any]], str],
) -> list[str]:
    """Measure what of ``wanted`` is not among the record's runs yet, a run at a time; -> what went wrong.

    Args:
        wanted: what tells one run from another.
        measure: its figures; may raise ``Failed``.
        say: a run in a line.
    """
    runs, failures = record.part("runs", []), []
    for key in wanted:
        if any(run.items() >= key.items() for run in runs):
            continue
        if deadline.has_passed:
            break
        try:
            runs.append(key | measure(key))
        except Failed as failure:
            failures.append(f"{key}: {failure}")
            continue
        record.save()
        print(say(runs[-1]), flush=True)
    return failures


def finish(failures: Sequence[str], deadline: Deadline) -> NoReturn:
    """Tell what failed and whether time was up, and end with status 1 where something failed."""
    for failure in failures:
        print(f"\n{failure}")
    if deadline.has_passed:
        print("\nTime is up: the same command goes on with what is missing.")
    raise SystemExit(1 if failures else 0)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows under their keys, as wide as they need to be."""
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    lines = [names, ["-" * widths[name] for name in names], *([row[name] for name in names] for row in rows)]
    return "\n".join(
        "  ".join(f"{cell:{widths[name]}}" for name, cell in zip(names, line, strict=True)).rstrip() for line in lines
    )
