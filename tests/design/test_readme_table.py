"""The READMEs show what the policy decides today."""

import re

import pytest
from click.testing import CliRunner
from readme_table import COMMAND, READMES, between_marks, table


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_table_of_decisions_is_the_one_that_the_policy_makes(readme):
    """Run ``python tests/design/readme_table.py --write`` to renew it."""
    assert between_marks(readme.read_text(encoding="utf-8")) == table()


def test_a_cell_says_what_fits_and_what_would_be_needed():
    rows = {row.split(" | ")[0].strip("| "): row for row in table().splitlines()}
    assert len(rows) == 13
    assert "does not fit: needs" in rows["T4"].split(" | ")[1]
    assert "base in nf4" in rows["T4"]
    assert "fp8" in rows["H100"]
    assert "speed not predicted" in rows["CPU, 64 GB"]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_readmes_name_the_command_of_the_table(readme):
    assert COMMAND.replace("TYPE", "lora").replace("GPU", "h100") in readme.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("row", "gpu", "column"),
    [("H100", "h100", "lora"), ("A10", "a10", "qlora"), ("8 x A100 80 GB", "8xa100-80g", "full"), ("T4", "t4", "lora")],
)
def test_the_command_gives_the_numbers_of_the_table(row, gpu, column, tmp_path, monkeypatch):
    """On a machine that has nothing of the model, as a newcomer's."""
    from adaptft.cli import group

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in table().splitlines()}
    cell = cells[row][("full", "lora", "qlora").index(column) + 1]
    words = COMMAND.replace("TYPE", column).replace("GPU", gpu).split()[1:]
    page = " ".join(CliRunner().invoke(group, words).output.split())
    numbers = re.findall(r"[\d,.]+ (?:tokens/s|GiB)", cell)
    assert numbers
    for number in numbers:
        assert number in page, page
