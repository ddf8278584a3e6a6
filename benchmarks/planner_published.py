"""The planner against published runs of other trainers: error by source, and whether GPUs are ranked as measured.

python benchmarks/planner_published.py TABLE.csv [--out benchmarks/results/planner_published-DATE.json]

TABLE has a row a run: source, gpu, model, method, precision, seq_len, micro_batch, grad_accum, grad_ckpt, attention,
packing, kernels, parallelism, tokens_per_s_per_gpu, mfu (percent), peak_mem_gb. Only rows whose stack does what ours
does are compared; for every other row the result says why it is not. Needs no GPU and no torch.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from adaptft.facts import DatasetShape, ModelShape
from adaptft.plans import Decision, LossKernel, MemoryEstimate, TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.assumed import machine_with
from adaptft.policy.gpus import row_named
from adaptft.policy.memory import ALLOCATOR_SLACK, estimate_memory
from adaptft.policy.targets import resolve_targets
from adaptft.policy.workload import Workload
from adaptft.requests import TrainRequest
from adaptft.shapes import model_shape

GIB, GB = 2**30, 1e9
BOUNDLESS = 2**44
SQUAD_TOKENS = 200
"""Mean length of SQuAD's rows (estimated), which NeMo packs; all other rows compared are one document each."""
Row = dict[str, str]

# names in the table -> hidden, MLP, layers, heads, key-value heads, vocabulary (the models' own config.json)
SHAPES: dict[str, tuple[int, int, int, int, int, int]] = {
    r"llama-?\s?2[- ]7\s?b": (4096, 11008, 32, 32, 32, 32000),
    r"llama-?\s?2[- ]13\s?b": (5120, 13824, 40, 40, 40, 32000),
    r"(llama2|codellama)-34b": (8192, 22016, 48, 64, 8, 32000),
    r"llama-?\s?2[- ]70\s?b": (8192, 28672, 80, 64, 8, 32000),
    r"llama-3-8b": (4096, 14336, 32, 32, 8, 128256),
    r"llama-3-70b": (8192, 28672, 80, 64, 8, 128256),
    r"(mistral|openbuddy-zephyr)-7b": (4096, 14336, 32, 32, 8, 32000),
    r"yi-6b": (4096, 11008, 32, 32, 4, 64000),
    r"yi-34b": (7168, 20480, 60, 56, 8, 64000),
    r"^qwen-1_8b": (2048, 5504, 24, 16, 16, 151936),
    r"^qwen-7b": (4096, 11008, 32, 32, 32, 151936),
    r"^qwen-14b": (5120, 13696, 40, 40, 40, 152064),
    r"baichuan2-7b": (4096, 11008, 32, 32, 32, 125696),
}
FUSED = re.compile(r"Unsloth|Megatron-Core|torch\.compile|compile unstated")
SHARDED = re.compile(r"FSDP")
GPUS_OF_A_MACHINE = 8
SPLIT = re.compile(r"TP[2-9]|PP[2-9]|CP[2-9]|TP8|pipeline|EP\d")


@dataclass(frozen=True, slots=True)
class Publisher:
    """What the memory figures of a source are: by torch (allocated, reserved) or of the process, and their unit."""

    name: str
    memory: str = ""
    unit: float = GIB


PUBLISHERS = (
    Publisher("Lightning-AI/litgpt", "allocated", GB),
    Publisher("modelscope/ms-swift docs/source_en", "reserved"),
    Publisher("modelscope/ms-swift docs (Megatron", "reserved"),
    Publisher("hiyouga/LLaMA-Factory", "process", GB),
    Publisher("unslothai/unsloth", "reserved"),
    Publisher("pytorch/torchtune", "allocated", GB),
    Publisher("pytorch.org"),
    Publisher("pytorch/torchtitan"),
    Publisher("huggingface/nanotron", "allocated"),
    Publisher("NVIDIA/NeMo"),
)


def publisher(row: Row) -> Publisher:
    return next(known for known in PUBLISHERS if row["source"].startswith(known.name))


def shape(row: Row) -> ModelShape | None:
    found = next((size for name, size in SHAPES.items() if re.search(name, row["model"], re.IGNORECASE)), None)
    if found is None:
        return None
    hidden, inter, layers, heads, kv, vocab = found
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inter,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab,
        "max_position_embeddings": 2**20, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    return model_shape(config, row["model"])


def number(row: Row, key: str) -> float | None:
    try:
        return float(row[key])
    except ValueError:
        return None


def speed_obstacle(row: Row) -> str | None:
    """Why the row's speed cannot be compared; the first reason that holds."""
    method, precision = row["method"], row["precision"]
    reasons: tuple[tuple[bool, str], ...] = (
        (number(row, "tokens_per_s_per_gpu") is None and number(row, "mfu") is None, "no tokens per second"),
        (number(row, "seq_len") is None or number(row, "micro_batch") is None, "settings not stated"),
        (shape(row) is None, "a model of a family or size that is not planned for"),
        (
            bool(SPLIT.search(row["parallelism"])),
            "layers split over GPUs (tensor, pipeline, context or expert parallel)",
        ),
        ("selective" in row["grad_ckpt"], "recomputes single operators"),
        (not FUSED.search(row["kernels"]), "eager kernels, where our layers are compiled and fused"),
        (
            row["gpu"].startswith("H100") and row["source"].startswith("pytorch.org"),
            "H100 with kernels of 2024-03, which its authors call not yet tuned",
        ),
        ("fp8" in precision and method != "lora", "FP8 training of all weights, which is not there"),
        (method not in ("lora", "qlora", "full", "pretrain"), f"method {method}"),
        ("gptq" in precision or "int8" in precision, "a base in another 4- or 8-bit format"),
        (row["packing"].startswith("no"), "padded rows of lengths that are not stated"),
        ("lin_flops/peak=1" in row["notes"], "faster than the GPU's peak: a misprint"),
        (
            "treat >=8k speed with care" in row["notes"] and (number(row, "seq_len") or 0) >= 8192,
            "speed that rises with the length, which causal attention cannot: in doubt",
        ),
    )
    return next((reason for holds, reason in reasons if holds), None)


def memory_obstacle(row: Row) -> str | None:
    """Why the row's memory cannot be compared."""
    reasons: tuple[tuple[bool, str], ...] = (
        (number(row, "peak_mem_gb") is None, "no peak memory of one GPU"),
        ("unstated" in row["gpu"], "GPU not stated"),
        (number(row, "seq_len") is None or number(row, "micro_batch") is None, "settings not stated"),
        (shape(row) is None, "a model of a family or size that is not planned for"),
        (row["parallelism"] != "single" and not SHARDED.match(row["parallelism"]), "spread over GPUs in another way"),
        (
            row["parallelism"] != "single" and row["method"] == "lora",
            "FSDP1, whose flat parameters hold gradients of frozen weights too",
        ),
        ("Unsloth" in row["kernels"], "checkpoints kept in host memory"),
        (row["attention"] == "eager/SDPA", "attention not stated"),
        (row["method"] not in ("lora", "qlora", "full"), f"method {row['method']}"),
        ("gptq" in row["precision"] or "int8" in row["precision"], "a base in another 4- or 8-bit format"),
        (
            publisher(row).memory == "reserved" and row["packing"].startswith("no"),
            "memory reserved for rows of many lengths, which an allocator without expandable segments fragments",
        ),
    )
    return next((reason for holds, reason in reasons if holds), None)


def planned(row: Row, model: ModelShape) -> TrainPlan:
    """A plan that is forced to do what the row did, on cards whose memory has no end; FSDP on as many as it had."""
    sharded = bool(SHARDED.match(row["parallelism"]))
    gpus = int(row["n_gpu"]) if sharded else 1
    machine = machine_with(row_named(row["gpu"]).key, min(gpus, GPUS_OF_A_MACHINE))
    endless = tuple(replace(gpu, memory_total_bytes=BOUNDLESS, memory_free_bytes=BOUNDLESS) for gpu in machine.gpus)
    method = {"pretrain": "full"}.get(row["method"], row["method"])
    half = "float16" if row["precision"].startswith("fp16") else "bfloat16"
    request = TrainRequest(
        model=row["model"],
        train_type=method,  # type: ignore[arg-type]
        max_length=int(float(row["seq_len"])),
        packing=True,
        per_device_train_batch_size=int(float(row["micro_batch"])),
        gradient_accumulation_steps=int(number(row, "grad_accum") or 1),
        gradient_checkpointing=row["grad_ckpt"] not in ("none", "none/recipe"),
        torch_compile=bool(FUSED.search(row["kernels"])),
        torch_dtype=None if "fp8" in row["precision"] else half,  # type: ignore[arg-type]
        fp8=True if "fp8" in row["precision"] else None,
        bnb_4bit_use_double_quant="dq" in row["precision"] or "LLaMA-Factory" not in row["source"],
        attn_impl="eager" if row["attention"] == "eager" else None,
        optim="adamw",
        target_modules=() if method == "full" else targets(row),
        lora_rank=None if method == "full" else int(re.search(r"r(\d+)", row["kernels"] + " r8")[1]),  # type: ignore[index]
    )
    if sharded:
        machines = gpus // GPUS_OF_A_MACHINE if gpus > GPUS_OF_A_MACHINE else None
        request = replace(request, strategy="fsdp2", nnodes=machines)
    return plan_training(replace(machine, gpus=endless), model, data(row), request)


def data(row: Row) -> DatasetShape:
    """Rows that fill a sequence, unless the source packs shorter ones."""
    length = SQUAD_TOKENS if "SQuAD" in row["packing"] else int(float(row["seq_len"]))
    return DatasetShape(
        num_rows=10**6, num_tokens=length * 10**6, num_trained_tokens=length * 10**6, longest_row_tokens=length
    )


def targets(row: Row) -> tuple[str, ...]:
    """ms-swift adapted c_attn by default and litgpt queries and values; the others all linear layers."""
    if "DEFAULT" in row["kernels"]:
        return ("q_proj", "k_proj", "v_proj")
    if row["source"].startswith("Lightning"):
        return ("q_proj", "v_proj")
    return ("all-linear",)


def predicted_bytes(row: Row, model: ModelShape) -> float:
    """What the source's own measure would show; eager stacks hold all logits in FP32."""
    plan = planned(row, model)
    decisions = plan.decisions
    if not FUSED.search(row["kernels"]):
        decisions = replace(decisions, loss=Decision(LossKernel(kernel="full"), "as the source's stack does"))
    adapted = None if decisions.method.value.train_type == "full" else resolve_targets(model, targets(row), ())
    work = Workload(model=model, decisions=decisions, targets=adapted)
    return _as_measured(estimate_memory(work, BOUNDLESS, on_gpu=True), publisher(row).memory)


def _as_measured(memory: MemoryEstimate, measure: str) -> float:
    return {
        "allocated": memory.peak_bytes,
        "reserved": memory.peak_bytes * (1 + ALLOCATOR_SLACK),
        "process": memory.needed_bytes,
    }[measure]


def measured_tokens(row: Row, model: ModelShape) -> float:
    """Tokens per second and GPU; from the utilisation, where only that is given: 6 N + 12 L h s FLOPs a token."""
    given = number(row, "tokens_per_s_per_gpu")
    if given is not None:
        return given
    weights = model.num_parameters - model.embedding_parameters
    flops = 6 * weights + 12 * model.num_layers * model.hidden_size * float(row["seq_len"])
    return float(row["mfu"]) / 100 * row_named(row["gpu"]).bf16_tflops * 1e12 / flops


def compare(rows: list[Row]) -> list[dict[str, Any]]:
    """A record for each row: what was compared, or why it was not."""
    return [
        {
            key: row[key]
            for key in ("source", "gpu", "model", "method", "precision", "seq_len", "kernels", "parallelism")
        }
        | {"speed": speed(row), "memory": memory(row)}
        for row in rows
    ]


def speed(row: Row) -> dict[str, Any]:
    model, obstacle = shape(row), speed_obstacle(row)
    if obstacle or model is None:
        return {"not_comparable": obstacle}
    plan = planned(row, model)
    return _beside(tokens_per_gpu(plan), measured_tokens(row, model))


def tokens_per_gpu(plan: TrainPlan) -> float:
    assert plan.speed is not None
    return plan.speed.tokens_per_second / plan.decisions.placement.value.num_gpus


def memory(row: Row) -> dict[str, Any]:
    model, obstacle = shape(row), memory_obstacle(row)
    if obstacle or model is None:
        return {"not_comparable": obstacle}
    return _beside(predicted_bytes(row, model), float(row["peak_mem_gb"]) * publisher(row).unit)


def _beside(predicted: float, measured: float) -> dict[str, Any]:
    return {"predicted": predicted, "measured": measured, "error": predicted / measured - 1}


def summary(records: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """By source: how many rows, the median error's size, the worst both ways, and why the others are left out."""
    found: dict[str, Any] = {}
    for name in (known.name for known in PUBLISHERS):
        mine = [record[kind] for record in records if record["source"].startswith(name)]
        errors = [one["error"] for one in mine if "error" in one]
        found[name] = {
            "rows": len(mine),
            "compared": len(errors),
            "median_error": median(map(abs, errors)) if errors else None,
            "median_signed_error": median(errors) if errors else None,
            "lowest": min(errors, default=None),
            "highest": max(errors, default=None),
            "not_comparable": dict(Counter(one["not_comparable"] for one in mine if "error" not in one)),
        }
    return found


def rankings(rows: list[Row]) -> list[dict[str, Any]]:
    """Every pair of GPUs that one source ran in one way: which is faster, measured and predicted."""
    return [found for one, other in combinations(rows, 2) if (found := _ranking(one, other)) is not None]


SAME_RUN = ("source", "model", "method", "seq_len", "micro_batch", "grad_ckpt", "kernels")


def _ranking(one: Row, other: Row) -> dict[str, Any] | None:
    model = shape(one)
    if one["gpu"] == other["gpu"] or model is None or any(one[key] != other[key] for key in SAME_RUN):
        return None
    rates = [_rate(row, model) for row in (one, other)]
    if None in rates or SPLIT.search(one["parallelism"] + other["parallelism"]):
        return None
    expected = [tokens_per_gpu(planned(row, model)) for row in (one, other)]
    measured = (rates[0] or 0) / (rates[1] or 1)
    return {
        "gpus": [one["gpu"], other["gpu"]], "model": one["model"], "kernels": one["kernels"], "source": one["source"],
        "measured_ratio": measured, "predicted_ratio": expected[0] / expected[1],
        "right": (measured > 1) == (expected[0] > expected[1]),
    }  # fmt: skip


def _rate(row: Row, model: ModelShape) -> float | None:
    """Tokens per second; totals of runs whose steps are not stated say nothing."""
    if number(row, "tokens_per_s_per_gpu") is None and number(row, "mfu") is None:
        return None
    return measured_tokens(row, model)


def lines(result: dict[str, Any]) -> Iterator[str]:
    for kind in ("speed", "memory"):
        yield f"\n{kind}: median error by source (rows compared of all)"
        for name, found in result[kind].items():
            if found["compared"]:
                yield (
                    f"  {name:36} {found['median_error']:6.1%}  signed {found['median_signed_error']:+.1%}, "
                    f"{found['lowest']:+.0%} to {found['highest']:+.0%}  ({found['compared']} of {found['rows']})"
                )
            for reason, count in found["not_comparable"].items():
                yield f"  {name:36} {'':6}  not compared: {count} x {reason}"
    right = sum(one["right"] for one in result["rankings"])
    yield f"\nGPUs ranked as measured: {right} of {len(result['rankings'])} pairs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    today = datetime.date.today().isoformat()
    parser.add_argument("table", type=Path)
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/planner_published-{today}.json"))
    options = parser.parse_args()
    with options.table.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    records = compare(rows)
    result = {
        "date": today,
        "table": options.table.name,
        "speed": summary(records, "speed"),
        "memory": summary(records, "memory"),
        "rankings": rankings(rows),
        "rows": records,
    }
    print("\n".join(lines(result)))
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
