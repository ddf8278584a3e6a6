"""Keys of other frameworks that are not just another name: switches, words with one right value, keys without use.

One row a key. A row reads the value and gives an ``Effect``: keys of ours to set, and a note for the user.
"""

from __future__ import annotations

from typing import Any

from adaptft.parsing.combining import SELF_COGNITION
from adaptft.parsing.effects import Meaning, entries, harmless, number, only, switch, unsupported, words
from adaptft.parsing.fields import option_fields
from adaptft.parsing.sharding import DEEPSPEED, FSDP, FSDP_CONFIG
from adaptft.parsing.values import FAST_KERNEL

_SHARDING = "Leave it out: adaptft decides where the model lives (adaptft plan shows it)."
_SFT_ONLY = "adaptft does supervised fine-tuning; leave it out."
_TEMPLATE = "the chat template is the one that comes with the model"
_OWN_KERNELS = "adaptft chooses its own kernels"
_LOADER = "adaptft loads the data in its own way"
_RANKS = "adaptft starts the ranks itself"
_TEXT_ONLY = "adaptft trains on text"
_MODEL_TYPE = "the model's type is read from its config"
_SPEED = "tokens and their rate are always reported"
_BEST = "no checkpoint is chosen for you"
_OPTIMIZERS = "Write optim: adamw, adamw_8bit or paged_adamw_8bit."

_FAST = ("auto", "none", "true", "yes", "on", "1", "flash", "flash_attn", "flash_attention", "flash_attention_2",
         "flash_attention_3", "fa2", "fa3")  # fmt: skip
_SDPA, _EAGER = {"attn_impl": "sdpa"}, {"attn_impl": "eager"}
_FLASH = words(
    {word: {} for word in _FAST} | dict.fromkeys(("sdpa", "false", "no", "off", "0"), _SDPA)
    | {"eager": _EAGER, "disabled": _EAGER},
    notes=dict.fromkeys(_FAST, FAST_KERNEL),
    fix="Write auto, fa2, sdpa or disabled.",
)  # fmt: skip


def _per_epoch(strategy: str, note: str) -> Meaning:
    """Several times an epoch is what adaptft does by itself."""
    several = dict.fromkeys(map(str, range(2, 101)), note)
    table = {"0": {strategy: "no"}, "1": {strategy: "epoch"}} | {word: {} for word in several}
    return words(table, notes=several, fix=f"Write a whole number, or {strategy.split('_')[0]}_steps.")


TRAIN: dict[str, Meaning] = {
    # what is trained, and how the base is stored
    "load_in_4bit": switch(true={"quant_bits": "4"}, false={"quant_bits": "0"}),
    "load_in_8bit": unsupported("Write load_in_4bit: true (train_type qlora) instead."),
    "use_peft": switch(true={"train_type": "lora"}, false={"train_type": "full"}),
    "lora_target_linear": switch(true={"target_modules": "all-linear"}),
    "quant_method": only("bnb", "bitsandbytes", "nf4", "none", fix="Only bitsandbytes NF4; leave it out."),
    "quantization_method": only("bnb", "bitsandbytes", "nf4", "none", fix="Only bitsandbytes NF4; leave it out."),
    "bnb_4bit_quant_type": only("nf4", fix="Only nf4; leave it out."),
    "freeze_trainable_layers": unsupported("Choose train_type full, lora or qlora."),
    "loraplus_lr_ratio": unsupported("Leave it out."),
    "lorap_lr_ratio": unsupported("Leave it out."),
    "pissa_init": unsupported("Leave it out."),
    "init_weights": only("true", "default", fix="Only PEFT's default initialisation; leave it out."),
    "tuner_backend": only("peft", fix="Leave it out: adapters are PEFT's."),
    "lora_fan_in_fan_out": only("false", "no", "0", fix="Leave it out."),
    "lora_task_type": only("causal_lm", fix="adaptft trains causal language models only."),
    "unfrozen_parameters": unsupported("Choose train_type full, lora or qlora."),
    "use_galore": unsupported(_OPTIMIZERS),
    "use_badam": unsupported(_OPTIMIZERS),
    "use_apollo": unsupported(_OPTIMIZERS),
    "use_adam_mini": unsupported(_OPTIMIZERS),
    "use_muon": unsupported(_OPTIMIZERS),
    "use_dft_loss": unsupported("Leave it out: the loss is the cross-entropy."),
    "use_llama_pro": unsupported("Choose train_type full, lora or qlora."),
    # precision and kernels
    "pure_bf16": switch(true={"torch_dtype": "bfloat16"}),
    "tf32": harmless("adaptft decides it from the GPU and the type of the weights"),
    "flash_attn": _FLASH,
    "flash_attention": _FLASH,
    "use_flash_attn": _FLASH,
    "attention": _FLASH,
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
    "lora_qkv_kernel": harmless(_OWN_KERNELS),
    "lora_o_kernel": harmless(_OWN_KERNELS),
    "lora_mlp_kernel": harmless(_OWN_KERNELS),
    "liger_rope": harmless(_OWN_KERNELS),
    "liger_rms_norm": harmless(_OWN_KERNELS),
    "liger_glu_activation": harmless(_OWN_KERNELS),
    "liger_swiglu": harmless(_OWN_KERNELS),
    "liger_layer_norm": harmless(_OWN_KERNELS),
    "liger_cross_entropy": harmless(_OWN_KERNELS),
    "liger_fused_linear_cross_entropy": harmless(_OWN_KERNELS),
    "cut_cross_entropy": harmless(_OWN_KERNELS),
    "plugins": entries(
        "axolotl.integrations.liger.", "axolotl.integrations.cut_cross_entropy.", note=_OWN_KERNELS,
        fix="Leave it out: adaptft takes no plugins.",
    ),
    "s2_attention": unsupported("Leave it out: attention is whole."),
    "shift_attn": unsupported("Leave it out: attention is whole."),
    "rope_scaling": unsupported("Leave it out: positions are the model's own."),
    "rope_theta": unsupported("Leave it out: positions are the model's own."),
    "torch_empty_cache_steps": harmless("memory is planned"),
    "low_cpu_mem_usage": harmless("weights are always read one by one"),
    "bnb_4bit_quant_storage": only("uint8", "none", fix="Only uint8; leave it out."),
    "lora_dtype": harmless("adapters are trained in FP32"),
    "upcast_layernorm": unsupported("Leave it out: adaptft decides what stays in FP32."),
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
    "template_type": harmless(_TEMPLATE),
    "use_chat_template": only("true", "yes", "1", fix="Rows of plain text (a column text) take no template."),
    "eos_token": harmless("an answer ends as the model's own template ends it"),
    "enable_thinking": harmless("reasoning is trained where rows have it"),
    "agent_template": unsupported("Leave it out: tools are written as the model's own template writes them."),
    "loss_scale": only("default", fix="Leave it out, or write train_on_prompt or mask_history."),
    "model_author": harmless(SELF_COGNITION),
    "self_cognition_sample": unsupported("Add swift/self-cognition#500 to dataset."),
    "train_dataset_sample": unsupported("Write max_samples, or dataset: data.jsonl#500."),
    "dataset_text_field": only("text", fix="Leave it out: rows are known by their columns; or map one with columns."),
    "dataset_train_split": only("train", fix="Only the split train is read; name a file to read another."),
    "dataset_test_split": harmless("rows are held out by val_dataset or split_dataset_ratio"),
    "label_names": harmless("the loss is on the answers"),
    "lazy_tokenize": harmless("rows are tokenised once and cached"),
    "dataset_shuffle": only("true", "yes", "1", fix="Leave it out: rows are always shuffled."),
    "train_dataloader_shuffle": only("true", "yes", "1", fix="Leave it out: rows are always shuffled."),
    "shuffle_merged_datasets": only("true", "yes", "1", fix="Leave it out: rows are always shuffled."),
    "mix_strategy": only("concat", fix="Data sets are joined; leave it out."),
    "packing_strategy": harmless("packs are filled best-fit, and no row is cut"),
    "sample_packing_sequentially": unsupported("Leave it out: packs are filled best-fit."),
    "curriculum_sampling": unsupported("Leave it out: rows are shuffled."),
    "ignore_pad_token_for_loss": only("true", "yes", "1", fix="Leave it out: padding is never in the loss."),
    "tokenizer_use_fast": harmless("the tokenizer is the one that comes with the model"),
    "is_llama_derived_model": harmless(_MODEL_TYPE),
    "is_mistral_derived_model": harmless(_MODEL_TYPE),
    "is_qwen_derived_model": harmless(_MODEL_TYPE),
    "resize_vocab": unsupported("Leave it out: the vocabulary stays as it is."),
    "new_special_tokens": unsupported("Leave it out: the vocabulary stays as it is."),
    "neftune_noise_alpha": unsupported("Leave it out: no noise is added."),
    "noisy_embedding_alpha": unsupported("Leave it out: no noise is added."),
    "image_max_pixels": harmless(_TEXT_ONLY),
    "video_max_pixels": harmless(_TEXT_ONLY),
    "max_pixels": harmless(_TEXT_ONLY),
    "freeze_vit": harmless(_TEXT_ONLY),
    "freeze_aligner": harmless(_TEXT_ONLY),
    "freeze_vision_tower": harmless(_TEXT_ONLY),
    "freeze_multi_modal_projector": harmless(_TEXT_ONLY),
    "freeze_llm": only("false", "no", "0", fix="Leave it out: the language model is what is trained."),
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
    "auto_resume_from_checkpoints": switch(true={"resume_from_checkpoint": "auto"}),
    "evals_per_epoch": _per_epoch("eval_strategy", "evaluations are spread over the run; or write eval_steps"),
    "saves_per_epoch": _per_epoch("save_strategy", "checkpoints are spread over the run; or write save_steps"),
    "logging_strategy": only("steps", fix="Write logging_steps."),
    "load_best_model_at_end": unsupported("The checkpoints are kept (save_total_limit): evaluate the one you want."),
    "early_stopping_patience": unsupported("Leave it out."),
    "plot_loss": harmless("the losses are in report.json and TensorBoard"),
    "logging_dir": harmless("TensorBoard's files lie in the output folder"),
    "save_only_model": unsupported("Leave it out: checkpoints are complete."),
    "save_safetensors": only("true", "yes", "1", fix="Weights are always saved as safetensors."),
    "add_version": only("false", "no", "0", fix="Leave output_dir out for a folder named for the time."),
    "run_name": harmless("a run has the name of its output folder"),
    "wandb_project": unsupported("Set WANDB_PROJECT in the environment, and report_to: wandb."),
    "wandb_entity": unsupported("Set WANDB_ENTITY in the environment, and report_to: wandb."),
    "wandb_name": harmless("a run has the name of its output folder"),
    "wandb_run_name": harmless("a run has the name of its output folder"),
    "wandb_run_id": unsupported("Leave it out."),
    "wandb_watch": unsupported("Leave it out: gradients are not logged."),
    "wandb_log_model": unsupported("Upload the result yourself."),
    "wandb_mode": unsupported("Set WANDB_MODE in the environment."),
    "push_to_hub": unsupported("Upload the result: hf upload NAME FOLDER."),
    "hub_model_id": unsupported("Upload the result: hf upload NAME FOLDER."),
    "special_tokens": entries(
        "pad_token", note="padding is never in the loss, whichever token it is",
        fix="Leave it out: the tokenizer's own tokens are used.",
    ),
    "ddp_timeout": harmless("adaptft starts the ranks itself"),
    "ddp_find_unused_parameters": harmless("adaptft starts the ranks itself"),
    "dataloader_num_workers": harmless(_LOADER),
    "dataloader_pin_memory": harmless(_LOADER),
    "remove_unused_columns": harmless(_LOADER),
    "strict": only("false", "no", "0", fix="Write max_bad_rows: 0 to stop at the first bad row."),
    "adam_epsilon": number(1e-8, fix="Only 1e-8; leave it out."),
    "cosine_min_lr_ratio": unsupported("Leave it out: the learning rate falls to 0."),
    "lr_scheduler_kwargs": unsupported("Leave it out."),
    "loss_watchdog_threshold": harmless("there is no watchdog"),
    "loss_watchdog_patience": harmless("there is no watchdog"),
    "eval_max_new_tokens": harmless("evaluation is of the loss; nothing is generated"),
    "eval_table_size": unsupported("Use adaptft infer on the result."),
    "eval_on_start": unsupported("Use adaptft eval on the model."),
    "compute_accuracy": unsupported("Use adaptft eval on the result."),
    "metric_for_best_model": harmless(_BEST),
    "greater_is_better": harmless(_BEST),
    "logging_first_step": harmless("the first step is always logged"),
    "include_num_input_tokens_seen": harmless(_SPEED),
    "include_tokens_per_second": harmless(_SPEED),
    "disable_tqdm": harmless("the progress is written one line a step"),
    "debug": unsupported("Leave it out."),
    "print_param_status": harmless("the plan shows what is trained"),
    "check_model": harmless("the weights are those on this machine"),
    "create_checkpoint_symlink": unsupported("Leave it out."),
    "save_first_step": unsupported("Leave it out, or write save_steps."),
    "hub_private_repo": unsupported("Upload the result: hf upload NAME FOLDER."),
    "hub_strategy": unsupported("Upload the result: hf upload NAME FOLDER."),
    "hf_use_auth_token": harmless("the login of the hub's own tool is used (hf auth login)"),
    "average_tokens_across_devices": harmless("every trained token counts the same, on whichever GPU it is"),
    "local_rank": harmless(_RANKS),
    "ddp_backend": harmless(_RANKS),
    "ddp_broadcast_buffers": harmless(_RANKS),
    "dataloader_prefetch_factor": harmless(_LOADER),
    "dataloader_persistent_workers": harmless(_LOADER),
    "dataloader_drop_last": harmless(_LOADER),
    # several GPUs
    "deepspeed": DEEPSPEED,
    "fsdp": FSDP,
    "fsdp_config": FSDP_CONFIG,
    "fsdp_version": harmless("sharding is always FSDP2's"),
    "device_map": only("auto", fix=_SHARDING),
    "max_memory": unsupported(_SHARDING),
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
