"""Keys of other frameworks that are not just another name: switches, words with one right value, keys without use.

One row a key. A row reads the value and gives an ``Effect``: keys of ours to set, and a note for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from adaptft.parsing.fields import option_fields
from adaptft.parsing.given import Given
from adaptft.parsing.values import NONE, read_bool


@dataclass(frozen=True, slots=True)
class Effect:
    """What a key means: fields to set (values as text), and a line for the user."""

    sets: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Meaning:
    """How a key is read, and the fields it can set."""

    read: Callable[[Given], Effect]
    targets: frozenset[str] = frozenset()


NOTHING = Effect()
_OFF = NONE | {"false", "no", "off", "0", "", "[]", "{}"}


def switch(*, true: Mapping[str, Any], false: Mapping[str, Any] | None = None) -> Meaning:
    """A switch that stands for values of ours; ``auto`` leaves the decision to adaptft."""
    if_false = false or {}

    def read(given: Given) -> Effect:
        if given.word in NONE | {"auto"}:
            return NOTHING
        return Effect(true if read_bool(given, auto=True) else if_false)

    return Meaning(read, frozenset(true) | frozenset(if_false))


def words(table: Mapping[str, Mapping[str, Any]], *, fix: str) -> Meaning:
    """A word that stands for values of ours; any other is refused."""

    def read(given: Given) -> Effect:
        if given.word not in table:
            raise given.wrong("is not supported", fix=fix)
        return Effect(table[given.word])

    return Meaning(read, frozenset(name for sets in table.values() for name in sets))


def harmless(note: str) -> Meaning:
    """A key without use here; the note says why."""
    return Meaning(lambda given: Effect(note=note))


def only(*allowed: str, fix: str, note: str = "") -> Meaning:
    """A key of which adaptft does what one or a few words ask for, and nothing else."""

    def read(given: Given) -> Effect:
        if given.word not in allowed:
            raise given.wrong("is not supported", fix=fix)
        return Effect(note=note)

    return Meaning(read)


def unsupported(fix: str) -> Meaning:
    """A key that is known and asks for what adaptft does not do; switched off it is harmless."""

    def read(given: Given) -> Effect:
        if given.raw in ([], {}) or given.word in _OFF:
            return NOTHING
        raise given.wrong("is known, and not supported yet", fix=fix)

    return Meaning(read)


_SHARDING = "Leave it out: adaptft decides where the model lives (adaptft plan shows it)."
_SFT_ONLY = "adaptft does supervised fine-tuning; leave it out."
_TEMPLATE = "the chat template is the one that comes with the model"
_OWN_KERNELS = "adaptft chooses its own kernels"
_LOADER = "adaptft loads the data in its own way"
_BITS = "Write 4 (the base in NF4), or leave it out."

TRAIN: dict[str, Meaning] = {
    # what is trained, and how the base is stored
    "load_in_4bit": switch(true={"quant_bits": "4"}, false={"quant_bits": "0"}),
    "load_in_8bit": unsupported("Write load_in_4bit: true (train_type qlora) instead."),
    "use_peft": switch(true={"train_type": "lora"}, false={"train_type": "full"}),
    "lora_target_linear": switch(true={"target_modules": "all-linear"}),
    "quant_method": only("bnb", "bitsandbytes", "nf4", "none", fix="Only bitsandbytes NF4; leave it out."),
    "quantization_method": only("bnb", "bitsandbytes", "nf4", "none", fix="Only bitsandbytes NF4; leave it out."),
    "bnb_4bit_quant_type": only("nf4", fix="Only nf4; leave it out."),
    "adapters": unsupported("To continue a run use resume_from_checkpoint; to start from an adapter merge it first."),
    "freeze_trainable_layers": unsupported("Choose train_type full, lora or qlora."),
    "loraplus_lr_ratio": unsupported("Leave it out."),
    "lorap_lr_ratio": unsupported("Leave it out."),
    "pissa_init": unsupported("Leave it out."),
    "init_weights": only("true", "default", fix="Only PEFT's default initialisation; leave it out."),
    # precision and kernels
    "pure_bf16": switch(true={"torch_dtype": "bfloat16"}),
    "tf32": only("true", "yes", "on", "1", "auto", fix="Leave it out: adaptft decides it from the GPU."),
    "flash_attn": words(
        {"auto": {}, "none": {}, "fa2": {"attn_impl": "varlen"}, "flash_attention_2": {"attn_impl": "varlen"},
         "flash_attn": {"attn_impl": "varlen"}, "true": {"attn_impl": "varlen"}, "sdpa": {"attn_impl": "sdpa"},
         "disabled": {"attn_impl": "eager"}, "false": {"attn_impl": "eager"}, "no": {"attn_impl": "eager"}},
        fix="Write auto, fa2, sdpa or disabled.",
    ),
    "flash_attention": switch(true={"attn_impl": "varlen"}, false={"attn_impl": "sdpa"}),
    "sdp_attention": switch(true={"attn_impl": "sdpa"}),
    "eager_attention": switch(true={"attn_impl": "eager"}),
    "xformers_attention": unsupported("Write attn_impl: varlen, sdpa or eager."),
    "disable_gradient_checkpointing": switch(
        true={"gradient_checkpointing": "false"}, false={"gradient_checkpointing": "true"}
    ),
    "use_liger_kernel": harmless(_OWN_KERNELS),
    "enable_liger_kernel": harmless(_OWN_KERNELS),
    "use_unsloth": unsupported("Leave it out: adaptft has its own kernels."),
    "fp8_backend": unsupported("Write fp8: true; adaptft chooses the kernels."),
    "gradient_checkpointing_kwargs": harmless("checkpointing is not re-entrant"),
    "padding_free": harmless("rows are packed or padded as the plan says"),
    # data
    "template": harmless(_TEMPLATE),
    "chat_template": harmless(_TEMPLATE),
    "model_type": harmless("the model's type is read from its config"),
    "tokenizer_type": harmless("the tokenizer is the one that comes with the model"),
    "truncation_mode": words(
        {"keep_start": {"truncation_strategy": "right"}, "keep_end": {"truncation_strategy": "left"}},
        fix="Write keep_start or keep_end.",
    ),
    "excess_length_strategy": words(
        {"drop": {"truncation_strategy": "delete"}, "truncate": {"truncation_strategy": "right"}},
        fix="Write drop or truncate.",
    ),
    "streaming": unsupported("Leave it out: rows are tokenised once and cached."),
    "completion_only_loss": switch(true={"train_on_prompt": "false"}, false={"train_on_prompt": "true"}),
    "assistant_only_loss": switch(true={"train_on_prompt": "false"}, false={"train_on_prompt": "true"}),
    "group_by_length": harmless("rows are packed or sorted as the plan says"),
    "overwrite_cache": harmless("cached rows are used only where nothing changed"),
    "load_from_cache_file": harmless("cached rows are used only where nothing changed"),
    "dataset_prepared_path": harmless("cached rows lie in adaptft's own cache"),
    "pad_to_sequence_len": harmless("packed rows fill the sequence"),
    "eval_sample_packing": harmless("evaluation rows are packed as training rows are"),
    "eval_packing": harmless("evaluation rows are packed as training rows are"),
    "columns": unsupported("Rename the columns in the file: adaptft recognises rows by their columns."),
    # batch, schedule and output
    "stage": only("sft", fix="adaptft does stage: sft only."),
    "task_type": only("causal_lm", fix="adaptft trains causal language models only."),
    "do_train": only("true", "yes", "1", fix="Use adaptft eval to evaluate without training."),
    "do_eval": switch(true={}, false={"eval_strategy": "no"}),
    "do_predict": unsupported("Use adaptft infer on the result."),
    "predict_with_generate": unsupported("Use adaptft infer on the result."),
    "rl": unsupported(_SFT_ONLY),
    "rlhf_type": unsupported(_SFT_ONLY),
    "pref_loss": unsupported(_SFT_ONLY),
    "pref_beta": unsupported(_SFT_ONLY),
    "beta": unsupported(_SFT_ONLY),
    "dpo_beta": unsupported(_SFT_ONLY),
    "kto_chosen_weight": unsupported(_SFT_ONLY),
    "warmup_steps": unsupported("Write warmup_ratio, the share of the steps."),
    "auto_resume_from_checkpoints": switch(true={"resume_from_checkpoint": "auto"}),
    "resume_only_model": unsupported("Leave it out: a resumed run goes on with its optimizer."),
    "evals_per_epoch": words(
        {"0": {"eval_strategy": "no"}, "1": {"eval_strategy": "epoch"}},
        fix="Write 1 or 0, or eval_steps.",
    ),
    "saves_per_epoch": words(
        {"0": {"save_strategy": "no"}, "1": {"save_strategy": "epoch"}},
        fix="Write 1 or 0, or save_steps.",
    ),
    "logging_strategy": only("steps", fix="Write logging_steps."),
    "load_best_model_at_end": unsupported("The checkpoints are kept (save_total_limit): evaluate the one you want."),
    "early_stopping_patience": unsupported("Leave it out."),
    "plot_loss": harmless("the losses are in report.json and TensorBoard"),
    "logging_dir": harmless("TensorBoard's files lie in the output folder"),
    "save_only_model": unsupported("Leave it out: checkpoints are complete."),
    "save_safetensors": only("true", "yes", "1", fix="Weights are always saved as safetensors."),
    "add_version": only("false", "no", "0", fix="Leave output_dir out for a folder named for the time."),
    "run_name": unsupported("Name the run through output_dir."),
    "wandb_project": unsupported("Set WANDB_PROJECT in the environment, and report_to: wandb."),
    "wandb_entity": unsupported("Set WANDB_ENTITY in the environment, and report_to: wandb."),
    "wandb_name": unsupported("Name the run through output_dir."),
    "push_to_hub": unsupported("Upload the result: hf upload NAME FOLDER."),
    "hub_model_id": unsupported("Upload the result: hf upload NAME FOLDER."),
    "special_tokens": unsupported("Leave it out: the tokenizer's own tokens are used."),
    "ddp_timeout": harmless("adaptft starts the ranks itself"),
    "ddp_find_unused_parameters": harmless("adaptft starts the ranks itself"),
    "dataloader_num_workers": harmless(_LOADER),
    "dataloader_pin_memory": harmless(_LOADER),
    "remove_unused_columns": harmless(_LOADER),
    "strict": only("false", "no", "0", fix="Write max_bad_rows: 0 to stop at the first bad row."),
    # several GPUs
    "deepspeed": unsupported(_SHARDING),
    "fsdp": unsupported(_SHARDING),
    "fsdp_config": unsupported(_SHARDING),
    "fsdp_version": unsupported(_SHARDING),
    "device_map": only("auto", fix=_SHARDING),
    "max_memory": unsupported(_SHARDING),
    "sequence_parallel_size": only("1", fix="Leave it out."),
}  # fmt: skip

SHARED: dict[str, Meaning] = {
    "use_hf": switch(true={"hub": "hf"}, false={"hub": "modelscope"}),
    "use_modelscope_hub": switch(true={"hub": "modelscope"}, false={"hub": "hf"}),
}

EXPORT: dict[str, Meaning] = {
    "merge_lora": switch(true={"format": "merged"}),
    "export_quantization_bit": words(
        {"4": {"format": "gptq"}, "8": {"format": "int8"}, "none": {}}, fix="Write --format awq, gptq, int8 or fp8."
    ),
    "quant_bits": only("4", "8", fix="The format says it: awq and gptq are 4-bit, int8 and fp8 8-bit."),
    "template": harmless(_TEMPLATE),
    "export_size": harmless("files are split at transformers' own size"),
    "export_device": words(
        {"cpu": {"device": "cpu"}, "auto": {}, "cuda": {"device": "cuda"}}, fix="Write cpu, cuda or auto."
    ),
    "push_to_hub": unsupported("Upload the result: hf upload NAME FOLDER."),
}  # fmt: skip


def meanings(kind: type[Any]) -> dict[str, Meaning]:
    """The keys with a meaning of their own that a request of ``kind`` accepts."""
    own = {"TrainRequest": TRAIN, "ExportRequest": EXPORT}.get(kind.__name__, {})
    fields = option_fields(kind)
    return {k: m for k, m in (SHARED | own).items() if k not in fields and m.targets <= fields.keys()}
