"""Every error a user can cause, as two lines: what is wrong, and how to fix it.

    AdaptftError                 exit 1
    +-- RequestError             exit 2   an option, recipe key or value that cannot be meant
    +-- DoesNotFit               exit 3   no plan fits the machine; names the nearest way out
    +-- MachineError             the machine cannot be read, or is not the one planned for
    +-- ModelError               no such model, unreadable or unsupported model
    +-- DataError                unreadable, empty or unusable training data
    +-- MissingPackage           an optional package is needed and absent
    +-- OutputError              the output folder is taken, unwritable or too small
    +-- TrainingError            a run had to stop
    +-- ExportError              an export failed or did not pass its checks
    +-- ServeError               an endpoint did not start or does not answer as it should

Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import re
from typing import ClassVar

_SECRETS = (  # what stands before a secret, and the secret
    re.compile(r"(://)[^/@\s]+(?=@)"),  # user and password in an address
    re.compile(r"\b(hf_)[A-Za-z0-9]{20,}"),
    re.compile(r"(\bBearer )\S+"),
    re.compile(r"([?&](?:X-Amz-\w+|Signature|Policy|Key-Pair-Id|token|access_token)=)[^&\s'\"]+"),
)

_UNWRITABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, ends of lines that are none of the keyboard's, halves of characters."""


def without_secrets(text: str) -> str:
    """``text`` of a library or a user with tokens, passwords and signatures of addresses replaced by ``***``."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text


def writable(text: str) -> str:
    """``text`` with what data and file names may hold and no terminal or log should get, as escapes.

    >>> writable("column \\ud800, \\u2028 or \\x1b[31m")
    'column \\\\ud800, \\\\u2028 or \\\\x1b[31m'
    """
    return _UNWRITABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class AdaptftError(Exception):
    """A problem together with its way out; ``str()`` gives both lines.

    ``fix`` has no default on purpose: an error without a way out does not type-check.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem, self.fix = (writable(without_secrets(text)) for text in (problem, fix))
        super().__init__(self.problem)

    def __str__(self) -> str:
        return f"{self.problem}\n{self.fix}"


class RequestError(AdaptftError):
    """An option, recipe key or value that cannot be meant."""

    exit_code = 2


class DoesNotFit(AdaptftError):
    """No plan fits this machine."""

    exit_code = 3


class MachineError(AdaptftError):
    """The machine cannot be read, or is not the one that a plan was made for."""


class Interrupted(KeyboardInterrupt):
    """Somebody stopped a run (Ctrl-C, SIGTERM); its text is one line: what is kept, and how to go on.

    Exit 0 where every step was saved, else 130.
    """

    def __init__(self, problem: str, *, fix: str, is_saved: bool = False) -> None:
        super().__init__(f"{problem}; {fix}")
        self.exit_code = 0 if is_saved else 130


class ModelError(AdaptftError):
    """A model that does not exist, cannot be read, or is of an unsupported architecture."""


class DataError(AdaptftError):
    """Training or evaluation data that is unreadable, empty or unusable."""


class MissingPackage(AdaptftError):
    """An optional package is needed and not installed."""


class OutputError(AdaptftError):
    """An output folder that is taken, unwritable or on a full disk."""


class TrainingError(AdaptftError):
    """A training run that had to stop."""


class ExportError(AdaptftError):
    """An export that failed or did not pass its checks."""


class ServeError(AdaptftError):
    """An endpoint that did not start, or does not answer as it should."""
