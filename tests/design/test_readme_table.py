"""The READMEs show what the policy decides today."""

import pytest
from readme_table import READMES, between_marks, table


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_table_of_decisions_is_the_one_that_the_policy_makes(readme):
    """Run ``python tests/design/readme_table.py --write`` to renew it."""
    if not readme.exists():
        pytest.skip(f"{readme.name} is not written yet")
    assert between_marks(readme.read_text(encoding="utf-8")) == table()


def test_a_cell_says_what_fits_and_what_would_be_needed():
    rows = {row.split(" | ")[0].strip("| "): row for row in table().splitlines()}
    assert len(rows) == 13
    assert "does not fit: needs" in rows["T4"].split(" | ")[1]
    assert "base in nf4" in rows["T4"]
    assert "fp8" in rows["H100"]
    assert "speed not predicted" in rows["CPU, 64 GB"]
