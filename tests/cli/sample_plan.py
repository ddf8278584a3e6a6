"""A complete plan with known numbers, as the screens and the plan file show it."""

from adaptft.facts import Cpu, DatasetShape, Gpu, HostMemory, LinearShape, Machine, ModelShape, Software
from adaptft.plans import (
    AdapterKernels,
    Attention,
    Batch,
    Checkpointing,
    Compile,
    CostEstimate,
    Decision,
    Decisions,
    LossKernel,
    MemoryEstimate,
    Method,
    Optimizer,
    Placement,
    Precision,
    Rejected,
    Schedule,
    SpeedEstimate,
    TrainPlan,
)
from adaptft.requests import TrainRequest
from adaptft.units import GiB

MACHINE = Machine(
    gpus=(
        Gpu(
            index=0,
            name="NVIDIA GeForce RTX 4090",
            compute_capability=(8, 9),
            memory_total_bytes=24 * GiB,
            memory_free_bytes=23 * GiB,
        ),
    ),
    cpu=Cpu(model_name="AMD EPYC", architecture="x86_64", logical_cores=32, physical_cores=16, usable_cores=16),
    memory=HostMemory(total_bytes=128 * GiB, available_bytes=100 * GiB),
    software=Software(python="3.11.7", packages={"bitsandbytes": "0.50.2"}),
)

MODEL = ModelShape(
    name="qwen2.5-7b",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    hidden_size=3584,
    intermediate_size=18944,
    num_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=152064,
    max_position_embeddings=32768,
    tie_word_embeddings=False,
    linears=(
        LinearShape(name="q_proj", kind="attention", in_features=3584, out_features=3584, count=28, per_token=28),
    ),
    num_parameters=7_615_616_512,
    num_active_parameters=7_615_616_512,
    stored_dtype="bfloat16",
)

DATASET = DatasetShape(
    num_rows=7473,
    num_tokens=1_420_000,
    num_trained_tokens=900_000,
    longest_row_tokens=1023,
    sources=("gsm8k/train.jsonl",),
)

DECISIONS = Decisions(
    precision=Decision(
        Precision(weights="bf16", compute="bf16", fp32_matmul="tf32"),
        "Ada has bf16 tensor cores; FP8 gains nothing under NF4 weights.",
    ),
    method=Decision(
        Method(
            train_type="qlora",
            base_storage="nf4",
            double_quant=True,
            lora_rank=16,
            lora_alpha=32.0,
            target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        ),
        "train_type was given; rank 16 on all 7 linear layers.",
        "user",
    ),
    placement=Decision(Placement(strategy="single", gpu_indices=(0,)), "The model fits on one GPU."),
    batch=Decision(
        Batch(
            micro_batch_size=4,
            gradient_accumulation_steps=4,
            data_parallel_size=1,
            global_batch_size=16,
            eval_batch_size=4,
            max_length=2048,
            packing=True,
        ),
        "The largest micro-batch that leaves 8 % of the memory free.",
    ),
    checkpointing=Decision(Checkpointing(layers=12, of=28), "As many layers as the micro-batch demands."),
    attention=Decision(Attention(implementation="varlen"), "Packed rows attend inside themselves without a mask."),
    loss=Decision(LossKernel(kernel="chunked", chunk_tokens=1024), "All logits at once would take 4.6 GiB."),
    optimizer=Decision(
        Optimizer(
            name="adamw",
            learning_rate=1e-4,
            weight_decay=0.0,
            adam_beta1=0.9,
            adam_beta2=0.95,
            max_grad_norm=1.0,
            lr_scheduler_type="cosine",
            warmup_steps=3,
        ),
        "Usual for adapters.",
    ),
    schedule=Decision(
        Schedule(max_steps=44, num_train_epochs=1.0, held_out_ratio=0.05, eval_steps=11, save_steps=0, logging_steps=1),
        "One pass over 694 sequences; save_strategy no.",
        "user",
    ),
    compile=Decision(Compile(enabled=False), "44 steps are too few to pay for compiling."),
    adapters=Decision(AdapterKernels(fused=False), "the operators are for GPUs: PEFT's own layers"),
)

PLAN = TrainPlan(
    machine=MACHINE,
    model=MODEL,
    dataset=DATASET,
    request=TrainRequest(model="qwen2.5-7b", train_type="qlora", given=("model", "train_type")),
    decisions=DECISIONS,
    memory=MemoryEstimate(
        weights_bytes=round(5.2 * GiB),
        adapters_bytes=round(0.15 * GiB),
        gradients_bytes=round(0.15 * GiB),
        optimizer_bytes=round(0.3 * GiB),
        activations_bytes=round(12.4 * GiB),
        logits_bytes=round(1.2 * GiB),
        workspace_bytes=0,
        framework_bytes=round(0.6 * GiB),
        capacity_bytes=23 * GiB,
    ),
    speed=SpeedEstimate(step_seconds=9.4, tokens_per_second=3490.0, mfu=0.41, total_seconds=414.0),
    cost=CostEstimate(usd_per_gpu_hour=0.44, total_usd=0.05, price_source="list price, 2026-11"),
    rejected=(Rejected("micro_batch_size 8", "needs 31.8 GiB, 23.0 GiB are free"),),
    warnings=("12 rows are longer than max_length and will be left out.",),
)
