"""Machines and models for the policy's tests, made from the policy's own table of GPUs."""

from __future__ import annotations

from dataclasses import replace

from adaptft.facts import Cpu, DatasetShape, HostMemory, Machine, ModelShape, Software
from adaptft.policy.gpus import gpu_named
from adaptft.shapes import model_shape
from adaptft.units import GiB

CPU = Cpu(model_name="test", architecture="x86_64", logical_cores=16, physical_cores=8, usable_cores=16)
PACKAGES = {"triton": "3.6.0", "bitsandbytes": "0.50.2"}
ALPACA = DatasetShape(
    num_rows=20_000, num_tokens=5_700_000, num_trained_tokens=4_000_000, longest_row_tokens=1500, sources=("alpaca",)
)


def machine(*gpus: str, host_gib: int = 64, cpu: Cpu = CPU, packages: dict[str, str] | None = None) -> Machine:
    """A machine with these GPUs, idle; none is a machine without a GPU."""
    return Machine(
        gpus=tuple(gpu_named(key, index=index) for index, key in enumerate(gpus)),
        cpu=cpu,
        memory=HostMemory(total_bytes=host_gib * GiB, available_bytes=host_gib * GiB),
        software=Software(python="3.12.3", packages=PACKAGES if packages is None else packages),
    )


def busy(whole: Machine, index: int, free_gib: float) -> Machine:
    """``whole`` with only ``free_gib`` free on one GPU."""
    gpus = tuple(replace(g, memory_free_bytes=int(free_gib * GiB)) if g.index == index else g for g in whole.gpus)
    return replace(whole, gpus=gpus)


def qwen2(
    hidden: int, inter: int, layers: int, heads: int, kv: int, vocab: int = 152064, tie: bool = False
) -> ModelShape:
    """A Qwen2.5 shape."""
    config = {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": hidden,
        "intermediate_size": inter, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "vocab_size": vocab, "tie_word_embeddings": tie,
        "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
    }  # fmt: skip
    return model_shape(config, f"qwen2-{hidden}")


QWEN_05B = qwen2(896, 4864, 24, 14, 2, vocab=151936, tie=True)
QWEN_7B = qwen2(3584, 18944, 28, 28, 4)
QWEN_14B = qwen2(5120, 13824, 48, 40, 8)
QWEN_32B = qwen2(5120, 27648, 64, 40, 8)
