"""Other trainers on the same job, by a folder of scripts that is not part of this project.

The folder holds ``run_peers.sh PEER CASE``, which runs one peer on one case and writes ``$OUT/PEER-CASE.log`` with a
line ``RESULT {json}``. The script names its model as ``M=...`` and its folder of data as ``D=...``; both are replaced,
so that peers get the model and the rows that adaptft gets.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from product import GIB, TAIL, Failed, watch

SCRIPT = "run_peers.sh"
RESULT = re.compile(r"\bRESULT (\{.*\})$", re.M)
THEIR_FIRST_STEP = re.compile(r"""['"]loss['"]: ?""")


def run(folder: Path, peer: str, case: str, *, model: Path, data: Path) -> dict[str, Any]:
    """tokens_per_second, peak_bytes and seconds_to_first_step of ``peer`` on ``case``.

    Raises:
        Failed: no result came of it.
    """
    with tempfile.TemporaryDirectory() as out:
        script = Path(out) / SCRIPT
        script.write_text(with_our(model, data, (folder / SCRIPT).read_text()))
        log = Path(out) / f"{peer}-{case}.log"
        environment = os.environ | {"OUT": out, "BENCH": str(folder.resolve())}
        _, first = watch(["bash", str(script), peer, case], log, THEIR_FIRST_STEP, env=environment)
        said = log.read_text(errors="replace") if log.exists() else "It wrote no log."
    return parse(said) | {"seconds_to_first_step": first}


def with_our(model: Path, data: Path, script: str) -> str:
    """``script`` with our model and data in place of its own.

    Raises:
        Failed: it does not name them where we look.
    """
    for name, path in (("M", model), ("D", data)):
        script, count = re.subn(rf"(?m)(^|; *){name}=[^\s;]+", rf"\g<1>{name}={path.resolve()}", script)
        if count != 1:
            raise Failed(f"{SCRIPT} sets {name}= {count} times: once was expected.")
    return script


def parse(said: str) -> dict[str, Any]:
    """What a RESULT line tells; ``tok_s`` is of the median step, ``tok_s_epoch`` of all after the first.

    Raises:
        Failed: there is none, or it holds no speed.
    """
    found = RESULT.findall(said)
    result = json.loads(found[-1]) if found else {}
    speed = result.get("tok_s") or result.get("tok_s_epoch")
    if not speed:
        raise Failed(f"no result; it said last:\n{said[-TAIL:]}")
    return {
        "tokens_per_second": speed,
        "peak_bytes": int(result["peak_alloc_gib"] * GIB),
        "steps": result["steps"],
        "last_loss": (result.get("loss_last") or [None])[-1],
    }


def version(folder: Path, peer: str) -> dict[str, str]:
    """``{peer: version}`` from the folder that the script puts on PYTHONPATH; empty where it cannot be told."""
    site = re.search(r"PYTHONPATH=(\S+)", (folder / SCRIPT).read_text())
    places = [site[1].replace("$peer", peer)] if site else []
    found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in distributions(path=places)}
    return {peer: found[peer]} if peer in found else {}
