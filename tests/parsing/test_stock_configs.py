"""Whole configs as the other frameworks ship them: they get through, or one error names all that cannot be taken."""

import shlex

import pytest

from adaptft.cli.arguments import split_arguments
from adaptft.errors import RequestError
from adaptft.parsing import parse_request
from adaptft.requests import TrainRequest

SWIFT_LORA = """
--model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500'
'AI-ModelScope/alpaca-gpt4-data-en#500' 'swift/self-cognition#500' --torch_dtype bfloat16 --num_train_epochs 1
--per_device_train_batch_size 1 --per_device_eval_batch_size 1 --learning_rate 1e-4 --lora_rank 8 --lora_alpha 32
--target_modules all-linear --gradient_accumulation_steps 16 --eval_steps 50 --save_steps 50 --save_total_limit 2
--logging_steps 5 --max_length 2048 --output_dir output --system 'You are a helpful assistant.' --warmup_ratio 0.05
--dataloader_num_workers 4 --attn_impl flash_attn --model_author swift --model_name swift-robot
"""
SWIFT_TWO_NAMES = """
--model_id_or_path SUSTC/SUS-Chat-34B --dataset alpaca-zh alpaca-en --eval_steps 20 --logging_steps 5
--output_dir output --lora_target_modules ALL --model_name xiao 'Xiao Huang' --model_author mota ModelScope
"""
SWIFT_FULL = """
--model Qwen/Qwen2.5-32B --train_type full --dataset org/r1 --torch_dtype bfloat16 --max_steps 2000
--streaming true --per_device_train_batch_size 1 --learning_rate 1e-5 --packing true --max_length 8192
--save_only_model true --deepspeed zero3 --use_liger_kernel true --attn_impl flash_attn
"""
TRL_LORA = """
--model_name_or_path Qwen/Qwen2-0.5B --dataset_name trl-lib/Capybara --learning_rate 2.0e-4 --num_train_epochs 1
--packing --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --gradient_checkpointing
--eos_token '<|im_end|>' --eval_strategy steps --eval_steps 100 --use_peft --lora_r 32 --lora_alpha 16
--output_dir Qwen2-0.5B-SFT
"""
TRL_OLD = """
--model_name meta-llama/Meta-Llama-3-8B --dataset_name org/data --learning_rate 0.0001 --max_seq_length 2048
--output_dir ./llama3-sft --use_peft --load_in_4bit --log_with wandb --gradient_checkpointing --logging_steps 10
"""

LLAMA_FACTORY_LORA = """\
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: identity,alpaca_en_demo
template: qwen3_nothink
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 4
output_dir: saves/qwen3-4b/lora/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
"""
AXOLOTL_LORA = """\
base_model: NousResearch/Llama-3.2-1B
load_in_8bit: false
load_in_4bit: false
strict: false
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
dataset_prepared_path: last_run_prepared
val_set_size: 0.1
output_dir: ./outputs/lora-out
adapter: lora
lora_model_dir:
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
pad_to_sequence_len: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_fan_in_fan_out:
lora_target_modules:
  - gate_proj
  - down_proj
wandb_project:
wandb_entity:
wandb_watch:
wandb_name:
wandb_log_model:
gradient_accumulation_steps: 2
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 0.0002
train_on_inputs: false
group_by_length: false
bf16: auto
fp16:
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
early_stopping_patience:
resume_from_checkpoint:
local_rank:
logging_steps: 1
xformers_attention:
flash_attention: true
s2_attention:
loss_watchdog_threshold: 5.0
loss_watchdog_patience: 3
warmup_steps: 10
evals_per_epoch: 4
eval_table_size:
eval_max_new_tokens: 128
saves_per_epoch: 1
debug:
deepspeed:
weight_decay: 0.0
fsdp:
fsdp_config:
special_tokens:
  pad_token: "<|end_of_text|>"
plugins:
  - axolotl.integrations.liger.LigerPlugin
liger_rope: true
"""
AXOLOTL_QLORA_FSDP = """\
base_model: Qwen/Qwen2-7B
load_in_4bit: true
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
adapter: qlora
lora_target_linear: true
optimizer: paged_adamw_32bit
wandb_project: mine
warmup_steps: 10
curriculum_sampling: true
lora_rnk: 8
fsdp:
  - full_shard
fsdp_config:
  fsdp_offload_params: true
"""


def from_words(text):
    return parse_request(TrainRequest, split_arguments(TrainRequest, shlex.split(text), own=[], recipe=True).options)


def from_recipe(folder, text):
    (folder / "stock.yaml").write_text(text)
    return parse_request(TrainRequest, {}, folder / "stock.yaml")


@pytest.mark.parametrize(
    ("words", "model", "notes"),
    [
        (SWIFT_LORA, "Qwen/Qwen2.5-7B-Instruct", ["--model_author swift", "--model_name swift-robot", "is a wish"]),
        (SWIFT_TWO_NAMES, "SUSTC/SUS-Chat-34B", ["--model_name xiao Xiao Huang", "--model_author mota ModelScope"]),
        (TRL_LORA, "Qwen/Qwen2-0.5B", ["--eos_token <|im_end|>"]),
        (TRL_OLD, "meta-llama/Meta-Llama-3-8B", ["train_type qlora"]),
    ],
)
def test_a_stock_command_line_gets_through_and_says_what_changed_nothing(words, model, notes):
    parsed = from_words(words)
    assert parsed.request.model == model
    for note in notes:
        assert any(note in line for line in parsed.notes), note


@pytest.mark.parametrize("text", [LLAMA_FACTORY_LORA, AXOLOTL_LORA])
def test_a_stock_recipe_gets_through(tmp_path, text):
    request = from_recipe(tmp_path, text).request
    assert request.train_type == "lora"
    assert request.warmup_steps == (10 if "warmup_steps" in text else None)


def test_all_that_cannot_be_taken_from_a_command_line_is_in_one_error():
    with pytest.raises(RequestError) as caught:
        from_words(SWIFT_FULL + " --lora_rnk 8")
    assert caught.value.problem.startswith("3 settings cannot be taken: [1] --streaming true is known")
    for key in ("--save_only_model true", "[3] --lora_rnk is not a known option"):
        assert key in caught.value.problem
    assert "[3] Did you mean --lora_rank?" in caught.value.fix
    assert len(str(caught.value).splitlines()) == 2


def test_all_that_cannot_be_taken_from_a_recipe_is_in_one_error_with_its_lines(tmp_path):
    with pytest.raises(RequestError) as caught:
        from_recipe(tmp_path, AXOLOTL_QLORA_FSDP)
    wanted = ("wandb_project: mine", "curriculum_sampling", "lora_rnk", "fsdp_config:", "optimizer: paged")
    assert caught.value.problem.startswith(f"{len(wanted)} settings cannot be taken: ")
    for key in wanted:
        assert key in caught.value.problem
    assert "line 8" in caught.value.problem
    assert "Nearest: paged_adamw_8bit" in caught.value.fix


def test_a_recipe_and_options_are_refused_together(tmp_path):
    (tmp_path / "a.yaml").write_text("model: m\nmax_length: 2k\n")
    with pytest.raises(RequestError, match=r"\[1\] max_length: 2k .* \[2\] --lora_rank 0 is out of range"):
        parse_request(TrainRequest, {"lora_rank": "0"}, tmp_path / "a.yaml")


def test_a_single_problem_reads_as_before():
    with pytest.raises(RequestError) as caught:
        from_words("--model m --streaming true")
    assert caught.value.problem == "--streaming true is known, and not supported yet."
