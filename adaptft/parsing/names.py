"""Key names: the synonyms that mean exactly what one of our fields means.

Keys that carry a meaning of their own (``load_in_4bit``, ``bf16``, ``stage``) are in ``meanings``.
``-`` and ``_`` are the same; case is not, except in the words of values.
"""

from __future__ import annotations

from typing import Any

from adaptft.parsing.fields import option_fields

# field <- names in ms-swift, LLaMA-Factory, Axolotl and TRL
SYNONYMS: dict[str, tuple[str, ...]] = {
    "model": ("model_name_or_path", "base_model", "model_id_or_path", "model_id"),
    "train_type": ("tuner_type", "finetuning_type", "adapter", "sft_type"),
    "revision": ("model_revision",),
    "dataset": ("datasets", "dataset_name", "train_dataset", "train_file"),
    "val_dataset": ("test_datasets", "eval_dataset", "validation_file", "val_datasets"),
    "split_dataset_ratio": ("val_size", "val_set_size", "dataset_test_ratio"),
    "max_length": ("cutoff_len", "sequence_len", "max_seq_length", "max_seq_len", "model_max_length"),
    "packing": ("neat_packing", "sample_packing"),
    "system": ("default_system", "system_prompt"),
    "train_on_prompt": ("train_on_inputs",),
    "dataset_num_proc": ("preprocessing_num_workers", "dataset_processes", "dataset_map_num_proc"),
    "lora_rank": ("lora_r", "rank"),
    "lora_dropout": ("lora_dropout_p",),
    "target_modules": ("lora_target", "lora_target_modules", "target_regex"),
    "modules_to_save": ("additional_target", "lora_modules_to_save"),
    "use_rslora": ("peft_use_rslora", "lora_use_rslora"),
    "use_dora": ("peft_use_dora", "lora_use_dora"),
    "torch_dtype": ("dtype", "bnb_4bit_compute_dtype", "infer_dtype"),
    "attn_impl": ("attn_implementation",),
    "quant_bits": ("quantization_bit",),
    "bnb_4bit_use_double_quant": ("double_quantization", "use_bnb_nested_quant"),
    "per_device_train_batch_size": ("micro_batch_size", "train_micro_batch_size_per_gpu", "batch_size"),
    "per_device_eval_batch_size": ("eval_batch_size",),
    "gradient_accumulation_steps": ("gradient_accumulation",),
    "global_batch_size": ("train_batch_size",),
    "learning_rate": ("lr",),
    "num_train_epochs": ("num_epochs", "epochs"),
    "lr_scheduler_type": ("lr_scheduler",),
    "optim": ("optimizer",),
    "max_grad_norm": ("gradient_clipping",),
    "seed": ("data_seed",),
    "eval_strategy": ("evaluation_strategy",),
    "report_to": ("log_with",),
    "num_gpus": ("nproc_per_node", "num_processes"),
    "nnodes": ("num_machines", "num_nodes"),
    "node_rank": ("machine_rank",),
    "master_addr": ("main_process_ip",),
    "master_port": ("main_process_port",),
    "sequence_parallel_size": ("context_parallel_size", "sequence_parallel_degree"),
    "adapters": ("adapter_name_or_path", "lora_model_dir", "adapter_path", "ckpt_dir"),
    "format": ("quant_method", "quantization_method"),
    "output_dir": ("export_dir",),
    "quant_n_samples": ("num_calibration_samples",),
    "max_model_len": ("vllm_max_model_len", "vllm_maxlen"),
    "gpu_memory_utilization": ("vllm_gpu_memory_utilization", "vllm_gpu_util"),
    "tensor_parallel_size": ("vllm_tensor_parallel_size",),
}

# names that have this meaning in one request only
_SPECIAL: dict[str, dict[str, str]] = {
    "ExportRequest": {"export_quantization_dataset": "dataset", "export_quantization_maxlen": "max_length"},
    "InferRequest": {"query": "prompt"},
}


def synonyms(kind: type[Any]) -> dict[str, str]:
    """Every accepted other name of an option of ``kind``, with the field it means."""
    fields = option_fields(kind)
    table = {other: name for name, others in SYNONYMS.items() if name in fields for other in others}
    return {k: v for k, v in (table | _SPECIAL.get(kind.__name__, {})).items() if k not in fields}


def canonical(key: str, kind: type[Any]) -> str | None:
    """The field of ``kind`` that ``key`` names, None where there is none."""
    folded = fold(key)
    return folded if folded in option_fields(kind) else synonyms(kind).get(folded)


def fold(key: str) -> str:
    """``per-device-train-batch-size`` and its other spellings as a field is written."""
    return key.strip().lstrip("-").replace("-", "_")
