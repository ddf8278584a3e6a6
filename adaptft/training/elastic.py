"""torchrun in this process: ``python -m adaptft.training.elastic ENDINGS TORCHRUN_WORD ...``.

It does what ``torchrun`` does, and leaves in the file ENDINGS how ranks ended where one failed, in place of a report on
the terminal: a rank that was killed cannot say so itself.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from adaptft.records import write_json
from adaptft.training.failures import Ending, Endings

FAILED, BY_SIGNAL = 1, 128


def main(endings: Path, words: list[str]) -> int:
    """Run the ranks of this machine; the exit status."""
    logging.disable(logging.ERROR)  # what it logs of failures is in the endings
    try:
        run(parse_args(words))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        found = (Ending(rank=rank, exit_code=failure.exitcode) for rank, failure in error.failures.items())
        write_json(endings, Endings(endings=tuple(found)))
        return FAILED
    except SignalException as error:
        return BY_SIGNAL + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
