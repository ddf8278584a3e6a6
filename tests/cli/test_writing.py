"""Commands that write try the place first: two lines at once, and not an error after the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adaptft.errors import OutputError
from adaptft.writable import check_file, check_folder

READS_NOTHING = "--model no-such-model-anywhere --dataset no-such-file.jsonl"
"""A model and data that are not there: an error about the place shows that it was looked at before them."""
COMMANDS = {
    "train": f"train {READS_NOTHING} --output_dir {{folder}}",
    "train a new run in a folder of a folder": f"train {READS_NOTHING} --output_dir {{folder}}/a/b",
    "export": "export --format merged --model no-such-model-anywhere --output_dir {folder}",
    "eval": "eval --model no-such-model-anywhere --dataset no-such-file.jsonl --output {folder}/scores.json",
    "plan": f"plan {READS_NOTHING} --compare a10 --html {{folder}}/page.html",
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("place", ["/proc/foo", "{file}", "{file}/deeper"])
def test_a_place_that_takes_no_files_is_refused_before_anything_is_read(words, place, tmp_path, adaptft_here):
    if place.startswith("/proc") and not Path("/proc").is_dir():
        pytest.skip("no /proc")
    (tmp_path / "file").write_text("somebody's")
    result = adaptft_here(*words.format(folder=place.format(file=tmp_path / "file")).split())
    assert result.returncode == 1
    problem, fix = result.stderr.splitlines()
    assert "writ" in problem, problem  # Cannot write to ..., ... cannot be written
    assert fix.startswith(("Fix:   Choose another --output_dir", "Fix:   Name a file in a folder that is there"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "somebody's"


def test_trying_leaves_nothing_behind_and_makes_nothing(tmp_path):
    check_folder(tmp_path / "new/deep", option="--output_dir")
    check_file(tmp_path / "page.html", option="--html")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(OutputError, match="is a folder"):
        check_file(tmp_path, option="--html")


def test_a_dangling_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(OutputError, match="Cannot write"):
        check_folder(tmp_path / "link/run", option="--output_dir")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(OutputError, match=r"takes no new files \(Permission denied"):
        check_folder(tmp_path / "closed/run", option="--output_dir")
