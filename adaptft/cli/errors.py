"""The one place where errors become two lines on stderr and an exit status.

0 done, 1 a problem with the machine, model, data or run, 2 a request that cannot be meant,
3 nothing fits, 130 interrupted (0 where the run saved every step first). A bug keeps its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable

import click

from adaptft.errors import AdaptftError, Interrupted

INTERRUPTED = 130
OF_THE_MACHINE: dict[int | None, str] = {
    errno.ENOSPC: "Free some space on that disk, or write to another one.",
    errno.EDQUOT: "Free some space in your quota, or write to another disk.",
    errno.EROFS: "Name a folder on a disk that can be written to.",
    errno.EACCES: "Name a file or folder that you may use.",
    errno.EPERM: "Name a file or folder that you may use.",
    errno.ENAMETOOLONG: "Shorten that name or path: a file name has at most 255 bytes.",
    errno.EMFILE: "Raise the limit on open files: ulimit -n",
}
"""What the file system refuses is no bug of ours, wherever it happens; any other OSError is."""
LONGEST_WORD = 300


def run(call: Callable[[], int | None]) -> int:
    """Call ``call`` and return the exit status of the process."""
    try:
        status = call() or 0
        sys.stdout.flush()
        return status
    except AdaptftError as error:
        return _report(error.problem, error.fix, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
        return 0
    except click.UsageError as error:
        return _report(_sentence(error.format_message()), _usage_fix(error), error.exit_code)
    except click.ClickException as error:
        return _report(_sentence(error.format_message()), "Mend that, and run the command again.", error.exit_code)
    except (KeyboardInterrupt, click.Abort) as stopped:
        # click has made an Abort of it, with the interrupt as its cause
        told = next((e for e in (stopped, stopped.__cause__) if isinstance(e, Interrupted)), None)
        click.echo(f"\n{told or 'Interrupted.'}", err=True)
        return told.exit_code if told else INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has left; nothing may be written while the interpreter closes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            raise
        where = f" ({error.filename})" if error.filename else ""
        return _report(f"{error.strerror or error}{where}.", OF_THE_MACHINE[error.errno], 1)


def _report(problem: str, fix: str, status: int) -> int:
    """Print exactly two lines."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    color = None if "NO_COLOR" not in os.environ else False
    for label, style, text in (("Error:", "red", problem), ("Fix:  ", "green", fix)):
        click.echo(
            f"{click.style(label, fg=style, bold=True)} {' '.join(map(_short, text.split()))}", err=True, color=color
        )
    return status


def _short(word: str) -> str:
    """A word that somebody pasted by mistake, without its middle."""
    return word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD // 2]}...{word[-LONGEST_WORD // 2 :]}"


def _usage_fix(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "adaptft"
    return f"See {path} --help."


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else text + "."
