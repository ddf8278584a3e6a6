"""Jobs say what the plan says, in the words that ``adaptft train`` reads."""

from dataclasses import replace

import pytest
from planned_jobs import ALIAS, a_job, a_plan

from adaptft.cli.arguments import split_arguments
from adaptft.jobs.job import job_of, option_words
from adaptft.parsing import parse_request
from adaptft.requests import TrainRequest


def read(words):
    return parse_request(TrainRequest, split_arguments(TrainRequest, list(words), own=(), recipe=True).options).request


@pytest.mark.parametrize(
    "wished",
    [
        {"train_type": "lora", "learning_rate": 1e-4, "lora_rank": 16},
        {"dataset": ("a b.jsonl", "org/data:part#500"), "target_modules": ("q_proj", "v_proj"), "packing": False},
        {"columns": '{"q": "query"}', "system": 'You\'re a "helper" of $HOME', "fp8": True, "save_strategy": "epoch"},
        {"warmup_steps": 0, "report_to": (), "bnb_4bit_use_double_quant": False, "truncation_strategy": "split"},
        {"save_total_limit": 2, "seed": 42},
    ],
)
def test_the_words_of_a_request_are_read_as_that_request(wished):
    request = TrainRequest(model=ALIAS, **wished, given=tuple(sorted({"model", *wished})))
    assert read(option_words(request)) == request


def test_the_place_of_a_machine_is_left_to_the_job_file():
    request = TrainRequest(model=ALIAS, nnodes=2, node_rank=1, master_addr="h", master_port=1, max_restarts=3)
    assert option_words(request) == ("--model", ALIAS)


def test_a_job_has_the_plans_gpus_and_goes_on_where_it_was_stopped():
    job = a_job()
    assert (job.nodes, job.gpus_per_node) == (2, 8)
    assert job.name == "qwen2-5-7b-lora"
    request = read(job.words[2:])
    assert request.resume_from_checkpoint == "auto"
    assert request.output_dir == job.output_dir == "output/qwen2-5-7b-lora"
    assert job.finished_file == "output/qwen2-5-7b-lora/adaptft.json"
    assert any("2 machines, each with 8 x NVIDIA H100" in line for line in job.summary)


def test_the_time_limit_has_room_and_is_left_out_where_nothing_is_known():
    plan = a_plan()
    limit = job_of(plan).limit_seconds
    assert limit % 600 == 0
    assert limit > 1.5 * plan.speed.total_seconds
    assert job_of(replace(plan, dataset=replace(plan.dataset, assumed=True))).limit_seconds is None
    assert job_of(replace(plan, speed=None)).limit_seconds is None


@pytest.mark.parametrize(
    ("model", "name"),
    [("org/My_Model.v2", "my-model-v2-lora"), ("/models/7B", "train-7b-lora"), ("a/b.gguf", "b-lora")],
)
def test_a_jobs_name_is_one_that_kubernetes_takes(model, name):
    plan = a_plan()
    assert job_of(replace(plan, request=replace(plan.request, model=model))).name == name
