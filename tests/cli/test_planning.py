"""The flow from a request to a plan: what needs no policy to be checked."""

import dataclasses
from datetime import datetime
from pathlib import Path

import pytest
from sample_plan import PLAN

from adaptft.cli.estimates import estimate
from adaptft.cli.planning import default_output_dir, refuse_unfit
from adaptft.cli.train import default_folder, given_folder
from adaptft.errors import DataError, DoesNotFit, RequestError
from adaptft.plans import Rejected
from adaptft.requests import TrainRequest


def plan_for(**request):
    return dataclasses.replace(PLAN, request=TrainRequest(**{"model": "Qwen/Qwen2.5-7B"} | request))


def test_files_are_estimated_from_their_size_and_hub_data_is_assumed(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b"x" * 40_960)
    shape = estimate((str(tmp_path / "rows.jsonl"), "org/data"))
    assert shape.assumed
    assert shape.num_tokens == 10_240 + 2_560_000
    assert shape.num_rows == 40 + 10_000


@pytest.mark.parametrize(
    ("name", "rows", "tokens"),
    [
        ("org/data#500", 500, 128_000),
        ("org/data:small#20", 20, 5120),
        ("ms::org/data#500", 500, 128_000),
        ("{folder}/rows.jsonl#30", 30, 30 * 41 // 4),
        ("{folder}/rows.jsonl#500", 100, 100 * 41 // 4),
        ("{folder}/long.jsonl#2500", 2500, 2500 * 41 // 4),
        ("{folder}/long.jsonl#9999", 3000, 3000 * 41 // 4),
    ],
)
def test_a_part_of_the_data_has_the_rows_it_asks_for(tmp_path, name, rows, tokens):
    for file, count in (("rows.jsonl", 100), ("long.jsonl", 3000)):
        (tmp_path / file).write_text(('{"text": "' + "x" * 28 + '"}\n') * count)
    shape = estimate((name.format(folder=tmp_path),))
    assert (shape.num_rows, shape.num_tokens, shape.assumed) == (rows, tokens, True)


def test_a_missing_file_is_refused_though_nothing_is_tokenised(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        estimate((str(tmp_path / "nowhere.jsonl"),))


def test_a_plan_that_fits_is_not_refused():
    refuse_unfit(PLAN)


@pytest.mark.parametrize(
    ("rejected", "fix"),
    [
        (
            [
                Rejected("lora, bf16", "needs 19 GiB"),
                Rejected("--train_type qlora", "needs 9 GiB", True),
                Rejected("--gpu a100-40g", "needs 31.2 GiB of its 39.6 GiB", True),
            ],
            "--train_type qlora needs 9 GiB; or --gpu a100-40g needs 31.2 GiB of its 39.6 GiB.",
        ),
        (
            [Rejected("full, fp32", "needs 1219 GiB of 18 GiB free")],
            "Take a smaller model: even the leanest plan needs 20.0 GiB, on any GPU that is known.",
        ),
        ([], "Take a smaller model"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_with_the_way_out(rejected, fix):
    with pytest.raises(DoesNotFit, match=r"qwen2\.5-7b with train_type qlora does not fit") as caught:
        refuse_unfit(dataclasses.replace(PLAN, fits=False, rejected=tuple(rejected)))
    assert fix in caught.value.fix
    assert caught.value.exit_code == 3


def test_the_output_folder_is_the_one_asked_for_the_checkpoints_or_a_new_one():
    assert given_folder(plan_for(output_dir="out").request) == Path("out")
    assert given_folder(plan_for(resume_from_checkpoint="out/checkpoint-3").request) == Path("out")
    assert given_folder(plan_for().request) is None
    assert default_folder(plan_for()).name.startswith("qwen2.5-7b-qlora-")
    now = datetime(2026, 11, 30, 15, 5, 12)
    assert default_output_dir(plan_for(), now) == Path("output/qwen2.5-7b-qlora-20261130-150512")


def test_a_run_that_should_go_on_must_be_named():
    with pytest.raises(RequestError, match="no run to go on with"):
        given_folder(plan_for(resume_from_checkpoint="auto").request)
