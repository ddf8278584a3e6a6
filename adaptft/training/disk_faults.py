"""What a file system refuses, in two lines that name what is kept.

The libraries that write checkpoints wrap the operating system's error in ways of their own.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from adaptft.errors import OutputError
from adaptft.training.checkpoints import newest_whole

FIXES: dict[int, str] = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some of your quota",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "Mount the disk writable",
    errno.EACCES: "Make the folder writable",
    errno.EPERM: "Make the folder writable",
    errno.EIO: "Look at the disk or share",
    errno.ESTALE: "Mount the share again",
    errno.ETIMEDOUT: "Look at the network share",
    errno.ENOENT: "Do not move or delete the folder of a run",
    errno.EMFILE: "Raise the limit on open files (ulimit -n)",
}
"""What the file system refuses, and what mends it; any other error is a bug of ours."""


def fault_number(error: BaseException, folder: Path) -> int | None:
    """The operating system's number of an error of the file system under ``folder``; None where it is none."""
    for cause in _chain(error):
        if isinstance(cause, OSError):
            if cause.errno in FIXES:
                return cause.errno
        elif found := re.search(r"\(os error (\d+)\)", str(cause)):  # safetensors
            if int(found.group(1)) in FIXES:
                return int(found.group(1))
        elif isinstance(cause, RuntimeError) and re.search(r"PytorchStreamWriter|inline_container", str(cause)):
            return errno.EACCES if not os.access(folder, os.W_OK) else errno.ENOSPC  # torch.save tells no reason
    return None


def disk_fault(number: int, folder: Path) -> OutputError:
    """The two lines for error ``number`` in ``folder``: what is kept, and how to go on."""
    last = newest_whole(folder)[0]
    kept = f"The last good checkpoint is {last}" if last else "There is no checkpoint yet"
    go_on = "go on with --resume_from_checkpoint auto." if last else "start the run again."
    return OutputError(
        f"Cannot write into {folder}: {os.strerror(number)}. {kept}.", fix=f"{FIXES[number]}, and {go_on}"
    )


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain
