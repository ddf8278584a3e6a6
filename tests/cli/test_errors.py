"""Errors: two lines on stderr and a status; bugs keep their traceback."""

import click
import pytest

from adaptft.cli.errors import run
from adaptft.errors import AdaptftError, DoesNotFit, Interrupted, RequestError


def fail(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AdaptftError("It broke.", fix="Mend it."), 1),
        (RequestError("It broke.", fix="Mend it."), 2),
        (DoesNotFit("It broke.", fix="Mend it."), 3),
        (AdaptftError("It\nbroke.", fix="Mend\n  it."), 1),
    ],
)
def test_an_error_is_two_lines_on_stderr_and_its_class_decides_the_status(error, status, capsys):
    assert run(fail(error)) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "Error: It broke.\nFix:   Mend it.\n"


def test_a_usage_error_of_click_has_the_same_form(capsys):
    assert run(fail(click.UsageError("Missing option '--machine'"))) == 2
    assert capsys.readouterr().err == "Error: Missing option '--machine'.\nFix:   See adaptft --help.\n"


def test_an_interrupt_is_one_line_and_130(capsys):
    assert run(fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


def test_an_interrupted_run_says_what_is_kept_also_through_click(capsys):
    @click.command()
    def command():
        raise Interrupted("Interrupted: checkpoint-4 is whole", fix="go on")

    assert run(lambda: command.main([], standalone_mode=False)) == 130
    assert capsys.readouterr().err.strip() == "Interrupted: checkpoint-4 is whole; go on"


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0)


def test_a_call_without_a_status_is_done():
    assert run(lambda: None) == 0
    assert run(lambda: 3) == 3


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        (["trian"], "adaptft has no command trian.", "Did you mean adaptft train?"),
        (["train", "--lora-rnk", "8"], "--lora-rnk is not a known option.", "Did you mean --lora_rank?"),
        (["plan", "--model", "m", "--packing", "maybe"], "--packing maybe is neither", "true or false"),
        (["plan", "--model", "m", "--packing", "2"], "--packing 2 is neither", "true or false"),
        (["plan"], "No model is given.", "--model"),
        (["plan", "nowhere.yaml"], "Cannot read the recipe nowhere.yaml", "YAML file"),
        (["train", "a", "b"], "b is one word too many.", "Name one model"),
        (["plan", "--machine"], "requires an argument", "See adaptft plan --help."),
        (["plan", "m", "--train_type", "lroa"], "--train_type lroa is not a choice", "Did you mean lora?"),
    ],
)
def test_what_cannot_be_meant_ends_with_status_2_and_two_lines(adaptft, words, first, second):
    done = adaptft(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    error, fix = done.stderr.splitlines()
    assert first in error
    assert second in fix


def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path):
    import subprocess
    import sys

    script = f"{sys.executable} -m adaptft train --help | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


def test_what_no_terminal_or_log_should_get_is_written_as_escapes():
    from adaptft.errors import DataError

    error = DataError("columns \ud800 \u2028 \x85 of caf\udce9.jsonl", fix="Rename \x1b[31m.")
    assert str(error) == "columns \\ud800 \\u2028 \\x85 of caf\\udce9.jsonl\nRename \\x1b[31m."
    assert error.args == (error.problem,)
