"""The numbers that a field can take. One row a field; a field without a row takes any number."""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.parsing.given import Given


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``; an open end is not among them."""

    low: float
    high: float = float("inf")
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, number: float) -> bool:
        above = number > self.low if self.low_open else number >= self.low
        below = number < self.high if self.high_open else number <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"{'above' if self.low_open else 'at least'} {self.low:g}"
        if self.high == float("inf"):
            return low
        return f"{low} and {'below' if self.high_open else 'at most'} {self.high:.10g}"


COUNT = Range(1)
POSITIVE = Range(0, low_open=True)
NOT_NEGATIVE = Range(0)
PART = Range(0, 1, high_open=True)
SHARE = Range(0, 1)

RANGES: dict[str, Range] = {
    "max_length": COUNT,
    "max_steps": COUNT,
    "max_rows": COUNT,
    "num_fewshot": NOT_NEGATIVE,
    "max_new_tokens": COUNT,
    "max_model_len": COUNT,
    "lora_rank": COUNT,
    "per_device_train_batch_size": COUNT,
    "per_device_eval_batch_size": COUNT,
    "gradient_accumulation_steps": COUNT,
    "global_batch_size": COUNT,
    "dataset_num_proc": COUNT,
    "save_steps": COUNT,
    "save_total_limit": COUNT,
    "eval_steps": COUNT,
    "logging_steps": COUNT,
    "num_gpus": COUNT,
    "nnodes": COUNT,
    "node_rank": NOT_NEGATIVE,
    "master_port": Range(1, 65535),
    "max_restarts": NOT_NEGATIVE,
    "sequence_parallel_size": COUNT,
    "tensor_parallel_size": COUNT,
    "quant_n_samples": COUNT,
    "group_size": COUNT,
    "lora_alpha": POSITIVE,
    "network_gbps": POSITIVE,
    "learning_rate": Range(0, 1, low_open=True),
    "num_train_epochs": POSITIVE,
    "lora_dropout": PART,
    "warmup_ratio": PART,
    "split_dataset_ratio": PART,
    "adam_beta1": PART,
    "adam_beta2": PART,
    "max_bad_rows": SHARE,
    "warmup_steps": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "max_grad_norm": NOT_NEGATIVE,
    "temperature": NOT_NEGATIVE,
    "gpu_memory_utilization": Range(0, 1, low_open=True),
    "port": Range(1, 65535),
    "seed": Range(0, 2**32 - 1),
}


def check_range(name: str, number: float, given: Given) -> None:
    """Refuse a number that the field ``name`` cannot take.

    Raises:
        RequestError: it is outside; the fix names the range.
    """
    allowed = RANGES.get(name)
    if allowed is not None and number not in allowed:
        raise given.wrong("is out of range", fix=f"{name} is {allowed}.")
