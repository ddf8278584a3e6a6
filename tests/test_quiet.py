"""Output of libraries goes to a log, and comes back with an error."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from adaptft.quiet import advertisements, no_bars, printing_to


def test_everything_that_is_printed_goes_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("a_loud_library")
    handler = logging.StreamHandler(sys.stderr)
    library.addHandler(handler)
    with printing_to(tmp_path / "log"):
        print("printed")
        print("complained", file=sys.stderr)
        library.warning("logged")
        late = logging.StreamHandler()
        logging.getLogger("a_late_library").addHandler(late)
    assert capsys.readouterr() == ("", "")
    text = (tmp_path / "log").read_text()
    assert all(word in text for word in ("printed", "complained", "logged"))
    library.warning("logged afterwards")
    assert "logged afterwards" in capsys.readouterr().err
    assert late.stream is sys.__stderr__, "no handler is left on a closed file"
    library.removeHandler(handler)


def fail(log: Path) -> None:
    with printing_to(log):
        print("the last words")
        raise ZeroDivisionError


def test_an_error_brings_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as error:
        fail(tmp_path / "log")
    assert "the last words" in error.value.__notes__[0]


def test_bars_of_libraries_are_off_inside_the_block_and_warnings_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tqdm import tqdm
    from tqdm.auto import tqdm as automatic

    with no_bars():
        for bar in (tqdm, automatic):
            list(bar([1, 2], desc="Decompressing model"))
            list(bar([1, 2], desc="Dispatching model", disable=False))
        print("a warning", file=sys.stderr)
    assert capsys.readouterr().err == "a warning\n"
    list(tqdm([1, 2], desc="our own"))
    assert "our own" in capsys.readouterr().err, "bars are back afterwards"


def test_an_advertisement_is_left_out_and_a_real_warning_of_the_same_library_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    advertisements()
    library = logging.getLogger("bitsandbytes.backends.cpu.ops")
    library.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s.", "no module")
    library.warning("the weights are wrong")
    assert [record.message for record in caplog.records] == ["the weights are wrong"]
