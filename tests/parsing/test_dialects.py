"""Keys of ms-swift, LLaMA-Factory, Axolotl and TRL."""

import pytest
from reading_requests import from_options, from_yaml

from adaptft.errors import RequestError
from adaptft.parsing import known_keys, parse_request
from adaptft.parsing.fields import option_fields
from adaptft.parsing.meanings import EXPORT, SHARED, TRAIN
from adaptft.parsing.names import SYNONYMS, synonyms
from adaptft.requests import EvalRequest, ExportRequest, InferRequest, ServeRequest, TrainRequest

KINDS = [TrainRequest, EvalRequest, ExportRequest, ServeRequest, InferRequest]
EXAMPLES = {"bool": "true", "int": "3", "float": "0.5", "text": "x", "list": "tensorboard"}

LLAMA_FACTORY = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
quantization_bit: 4
quantization_method: bnb
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: org/identity, org/alpaca
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
output_dir: saves/llama3-8b/lora/sft
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
val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
eval_steps: 500
"""

AXOLOTL = """\
base_model: NousResearch/Llama-3.2-1B
load_in_8bit: false
load_in_4bit: true
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
  - path: mhenrichsen/alpaca_2k_test
    name: small
    type: alpaca
    split: train
dataset_prepared_path: last_run_prepared
val_set_size: 0.1
output_dir: ./outputs/qlora-out
adapter: qlora
lora_model_dir:
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
pad_to_sequence_len: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_modules:
  - gate_proj
  - down_proj
lora_target_linear: false
wandb_project:
wandb_entity:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: auto
gradient_checkpointing: true
resume_from_checkpoint:
logging_steps: 1
flash_attention: true
warmup_ratio: 0.1
evals_per_epoch: 1
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
"""


def test_a_llama_factory_recipe_reads_as_it_stands(tmp_path):
    (tmp_path / "lf.yaml").write_text(LLAMA_FACTORY)
    parsed = parse_request(TrainRequest, {}, tmp_path / "lf.yaml")
    request = parsed.request
    assert (request.model, request.train_type, request.quant_bits) == (
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "qlora",
        4,
    )
    assert request.dataset == ("org/identity#1000", "org/alpaca#1000")
    assert (request.target_modules, request.torch_dtype, request.max_length) == (("all-linear",), "bfloat16", 2048)
    assert (request.split_dataset_ratio, request.dataset_num_proc, request.learning_rate) == (0.1, 16, 1e-4)
    assert (request.report_to, request.overwrite_output_dir, request.resume_from_checkpoint) == ((), True, None)
    assert any(note.startswith("template: llama3 changes nothing") for note in parsed.notes)
    assert any("which is train_type qlora" in note for note in parsed.notes)


def test_an_axolotl_recipe_reads_as_it_stands(tmp_path):
    (tmp_path / "axolotl.yaml").write_text(AXOLOTL)
    request = parse_request(TrainRequest, {}, tmp_path / "axolotl.yaml").request
    assert (request.model, request.train_type, request.lora_rank, request.lora_alpha) == (
        "NousResearch/Llama-3.2-1B",
        "qlora",
        32,
        16.0,
    )
    assert request.dataset == ("teknium/GPT4-LLM-Cleaned", "mhenrichsen/alpaca_2k_test:small")
    assert (request.packing, request.attn_impl, request.torch_dtype) == (True, None, None)
    assert (request.optim, request.eval_strategy, request.save_strategy) == ("adamw_8bit", "epoch", "epoch")
    assert request.target_modules == ("gate_proj", "down_proj")
    assert request.resume_from_checkpoint is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_synonym_reads_as_its_field_for_every_request(kind):
    fields = option_fields(kind)
    required = {n: "merged" if n == "format" else "m" for n, f in fields.items() if f.required}
    for other, name in synonyms(kind).items():
        word = fields[name].words[0] if fields[name].words else EXAMPLES[fields[name].kind]
        options = {k: v for k, v in required.items() if k != name}
        theirs, ours = parse_request(kind, options | {other: word}), parse_request(kind, options | {name: word})
        assert (theirs.request, theirs.given) == (ours.request, ours.given)
        dashed = other.replace("_", "-")
        assert name in parse_request(kind, options | {dashed: word}).given


def test_no_synonym_is_a_field_or_means_two_things():
    seen = [other for others in SYNONYMS.values() for other in others]
    assert len(seen) == len(set(seen))
    assert not set(seen) & set(SYNONYMS)


def test_keys_with_a_meaning_set_fields_that_exist():
    for kind, table in ((TrainRequest, TRAIN | SHARED), (ExportRequest, EXPORT | SHARED)):
        for key, meaning in table.items():
            assert meaning.targets <= option_fields(kind).keys(), key


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"load_in_4bit": "true"}, {"train_type": "qlora", "quant_bits": 4}),
        ({"load_in_4bit": True, "use_peft": True}, {"train_type": "qlora"}),
        ({"finetuning_type": "lora", "quantization_bit": "4"}, {"train_type": "qlora"}),
        ({"train_type": "lora", "quant_bits": 4}, {"train_type": "qlora"}),
        ({"use_peft": "false"}, {"train_type": "full"}),
        ({"use_peft": "true"}, {"train_type": "lora"}),
        ({"lora_target_linear": "true"}, {"target_modules": ("all-linear",)}),
        ({"bf16": "true"}, {"torch_dtype": "bfloat16"}),
        ({"bf16": "true", "fp16": "false"}, {"torch_dtype": "bfloat16"}),
        ({"fp16": "yes", "bf16": "no"}, {"torch_dtype": "float16"}),
        ({"bf16": "false"}, {"torch_dtype": "float32"}),
        ({"bf16": "auto"}, {"torch_dtype": None}),
        ({"pure_bf16": "true"}, {"torch_dtype": "bfloat16"}),
        ({"flash_attn": "fa2"}, {"attn_impl": None}),
        ({"flash_attn": "sdpa"}, {"attn_impl": "sdpa"}),
        ({"flash_attn": "disabled"}, {"attn_impl": "eager"}),
        ({"flash_attn": "auto"}, {"attn_impl": None}),
        ({"sdp_attention": "true"}, {"attn_impl": "sdpa"}),
        ({"use_hf": "true"}, {"hub": "hf"}),
        ({"use_hf": "false"}, {"hub": "modelscope"}),
        ({"disable_gradient_checkpointing": "true"}, {"gradient_checkpointing": False}),
        ({"do_eval": "false"}, {"eval_strategy": "no"}),
        ({"evaluation_strategy": "no"}, {"eval_strategy": "no"}),
        ({"truncation_mode": "keep_start"}, {"truncation_strategy": "right"}),
        ({"datasets": [{"path": "a.jsonl", "type": "alpaca"}]}, {"dataset": ("a.jsonl",)}),
        ({"dataset": "org/a,org/b#5", "max_samples": "9"}, {"dataset": ("org/a#9", "org/b#5")}),
        ({"dataset": "a.jsonl", "max_samples": "none"}, {"dataset": ("a.jsonl",)}),
        ({"adapter_name_or_path": "output/a"}, {"adapters": "output/a"}),
        ({"deepspeed": ""}, {"strategy": None}),
        ({"deepspeed": "zero2"}, {"strategy": "zero2"}),
        ({"deepspeed": "zero3"}, {"strategy": "fsdp2"}),
        ({"deepspeed": "examples/deepspeed/ds_z3_config.json"}, {"strategy": "fsdp2"}),
        ({"deepspeed": "deepspeed_configs/zero1.json"}, {"strategy": "zero2"}),
        ({"fsdp": "fsdp2"}, {"strategy": "fsdp2"}),
        ({"fsdp": "full_shard auto_wrap", "fsdp_version": "1"}, {"strategy": "fsdp2"}),
        ({"fsdp": ["shard_grad_op", "auto_wrap"]}, {"strategy": "zero2"}),
        (
            {"fsdp": "true", "fsdp_config": {"offload_params": False}},
            {"strategy": "fsdp2"},
        ),
        ({"fsdp": "", "fsdp_config": {}}, {"strategy": None}),
        ({"strategy": "zero3"}, {"strategy": "fsdp2"}),
        ({"context_parallel_size": "2"}, {"sequence_parallel_size": 2}),
        ({"num_nodes": "2"}, {"nnodes": 2}),
        ({"load_in_8bit": "false"}, {}),
        ({"warmup_steps": "10"}, {"warmup_steps": 10}),
        ({"warmup_steps": 0, "warmup_ratio": 0.1}, {"warmup_steps": 0, "warmup_ratio": 0.1}),
        ({"tf32": "false"}, {}),
        ({"attn_impl": "flash_attn"}, {"attn_impl": None}),
        ({"attn_implementation": "flash_attention_2"}, {"attn_impl": None}),
        ({"flash_attention": "false"}, {"attn_impl": "sdpa"}),
        ({"model_name": "swift-robot", "model_author": "swift"}, {"model": "m"}),
        ({"evals_per_epoch": "4", "saves_per_epoch": "1"}, {"save_strategy": "epoch"}),
        ({"evals_per_epoch": "0"}, {"eval_strategy": "no"}),
        ({"adam_epsilon": "0.00000001"}, {}),
        ({"columns": '{"q": "query", "a": "response"}'}, {"columns": '{"a": "response", "q": "query"}'}),
        ({"columns": {"问": "query"}}, {"columns": '{"问": "query"}'}),
        ({"columns": "none"}, {"columns": None}),
    ],
)
def test_keys_that_carry_a_meaning(options, wanted):
    parsed = from_options(**options)
    for name, value in wanted.items():
        assert getattr(parsed.request, name) == value
        assert (name in parsed.given) is (value is not None)


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        ({"stage": "dpo"}, "--stage dpo is not supported", "sft only"),
        ({"rlhf_type": "grpo"}, "is known, and not supported yet", "supervised fine-tuning"),
        ({"deepspeed": "mine.json"}, "--deepspeed mine.json does not say which stage", "--strategy zero2 or fsdp2"),
        ({"deepspeed": "zero3_offload"}, "--deepspeed zero3_offload is not supported", "keeps weights on GPUs"),
        ({"fsdp": "hybrid_shard"}, "--fsdp hybrid_shard is not supported", "--strategy zero2 or fsdp2"),
        ({"fsdp": "full_shard offload"}, "is not supported", "keeps weights on GPUs"),
        ({"fsdp": "fsdp2", "deepspeed": "zero2"}, "contradicts --fsdp fsdp2", "both set strategy"),
        ({"fsdp_config": {"offload_params": True}}, "--fsdp_config", "keeps weights on GPUs"),
        ({"load_in_8bit": "true"}, "is known, and not supported yet", "load_in_4bit"),
        ({"quantization_bit": "8"}, "--quantization_bit 8", "4"),
        ({"quant_method": "hqq"}, "--quant_method hqq", "NF4"),
        ({"train_type": "dora"}, "--train_type dora is not a choice", "Did you mean lora?"),
        ({"load_in_4bit": "no", "train_type": "qlora"}, "contradicts train_type qlora", "lora"),
        ({"quant_bits": 4, "train_type": "full"}, "contradicts train_type full", "qlora"),
        ({"bf16": "true", "fp16": "true"}, "contradicts --fp16 true", "one of the two"),
        ({"cutoff_len": 512, "max_length": 1024}, "--max_length 1024 contradicts --cutoff_len 512", "one of the two"),
        ({"max_samples": "10"}, "stands without a dataset", "data.jsonl#500"),
        ({"datasets": [{"type": "alpaca"}]}, "without a path", "path"),
        ({"datasets": [{"path": "a", "split": "test"}]}, "split: test", "train"),
        ({"datasets": [{"path": "a", "pth": "b"}]}, "The key pth", "Did you mean path?"),
        ({"columns": "q=query"}, "is no mapping of column names", "response"),
        ({"columns": '{"q": 1}'}, "is no mapping of column names", "response"),
        ({"warmup_steps": "-1"}, "--warmup_steps -1", "at least 0"),
        ({"optim": "paged_adamw_32bit"}, "--optim paged_adamw_32bit is not a choice", "Nearest: paged_adamw_8bit"),
        ({"optim": "adafactor"}, "--optim adafactor is not a choice", "Nearest: adamw_8bit"),
        ({"optim": "sgd"}, "--optim sgd is not a choice", "Nearest: adamw."),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "is not a choice", "Nearest: cosine."),
        ({"plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}, "is known", "no plugins"),
        ({"special_tokens": {"eos_token": "<|im_end|>"}}, "is known", "the tokenizer's own"),
        ({"adam_epsilon": "1e-6"}, "--adam_epsilon 1e-6 is not supported", "1e-8"),
        ({"self_cognition_sample": "500"}, "is known", "swift/self-cognition#500"),
    ],
)
def test_what_cannot_be_done_is_refused_and_says_what_to_write(options, problem, fix):
    with pytest.raises(RequestError) as caught:
        from_options(**options)
    assert problem in caught.value.problem
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("lora_rnk", "lora_rank"),
        ("learning-rat", "learning_rate"),
        ("datset", "dataset"),
        ("cutof_len", "cutoff_len"),
        ("gradient_acumulation_steps", "gradient_accumulation_steps"),
        ("MODEL", "model"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path, key, nearest):
    with pytest.raises(RequestError) as caught:
        from_yaml(tmp_path, f"{key}: 1\n")
    assert caught.value.problem.startswith(f"{key} is not a known option")
    assert caught.value.fix == f"Did you mean {nearest}?"
    with pytest.raises(RequestError, match="not a known option"):
        from_options(**{key: 1})


def test_fields_that_are_not_options_are_no_keys():
    assert "given" not in known_keys(TrainRequest)
    with pytest.raises(RequestError, match="given is not a known option"):
        from_options(given="x")


def test_a_model_is_required():
    with pytest.raises(RequestError, match="No model is given"):
        parse_request(TrainRequest, {})


def test_a_dataset_dir_gives_the_names_a_folder(tmp_path):
    assert from_options(dataset="alpaca_en", dataset_dir=str(tmp_path)).request.dataset == (
        str(tmp_path / "alpaca_en"),
    )
    with pytest.raises(RequestError, match="is not a folder"):
        from_options(dataset="alpaca_en", dataset_dir=str(tmp_path / "nowhere"))


def test_export_understands_the_words_of_llama_factory_and_swift():
    def read(**options):
        return parse_request(ExportRequest, options).request.format

    assert read(merge_lora="true") == "merged"
    assert read(export_quantization_bit="4") == "gptq"
    assert read(quant_method="awq", quant_bits="4") == "awq"
    assert read(format="AutoAWQ") == "awq"
