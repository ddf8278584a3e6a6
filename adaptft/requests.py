"""What is wanted. ``None`` always means "you decide"; the policy then says what it took and why.

Field names are the option and recipe keys. They are ms-swift's where it has one; synonyms of
other frameworks are translated in ``adaptft.parsing.names`` before they reach these classes.
Each field carries its help line and the heading it stands under, so the command line,
the recipes and the documentation have one source.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field
from typing import Any, Literal

TrainType = Literal["full", "lora", "qlora"]
Strategy = Literal["ddp", "zero2", "fsdp2"]
Hub = Literal["hf", "modelscope"]
ExportFormat = Literal["merged", "fp8", "fp8-block", "awq", "gptq", "int8"]
InferBackend = Literal["vllm", "sglang", "transformers"]
KvCacheDtype = Literal["auto", "fp8"]


def option(default: Any, *, help: str, group: str) -> Any:
    """A dataclass field that is also an option: its help line and its heading in ``--help``."""
    return field(default=default, metadata={"help": help, "group": group})


def is_option(request_field: Field[Any]) -> bool:
    """True where the field is an option and a recipe key; fields without a help line are neither."""
    return "help" in request_field.metadata


MODEL, DATA, ADAPTER, NUMBERS, BATCH, SCHEDULE, OUTPUT, MACHINE = (
    "Model", "Data", "Adapter", "Precision and kernels", "Batch", "Schedule", "Output", "Machine",
)  # fmt: skip


PLANNED = frozenset(
    {
        "train_type", "max_length", "packing", "split_dataset_ratio", "lora_rank", "lora_dropout", "target_modules",
        "torch_dtype", "fp8", "attn_impl", "gradient_checkpointing", "torch_compile", "per_device_train_batch_size",
        "gradient_accumulation_steps", "global_batch_size", "per_device_eval_batch_size", "learning_rate",
        "num_train_epochs", "warmup_ratio", "optim", "weight_decay", "save_steps", "eval_steps", "num_gpus", "strategy",
        "sequence_parallel_size", "device",
    }
)  # fmt: skip
"""Options of a training that the plan decides where nobody sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """One fine-tuning run, as its author asks for it."""

    model: str = option(MISSING, group=MODEL, help="Alias (qwen-7b), hub id, local folder or GGUF file.")
    train_type: TrainType | None = option(None, group=MODEL, help="full, lora or qlora; auto lets the plan decide.")
    hub: Hub | None = option(None, group=MODEL, help="Where hub ids are looked up: hf or modelscope.")
    revision: str | None = option(None, group=MODEL, help="Branch, tag or commit of a hub model.")
    trust_remote_code: bool = option(False, group=MODEL, help="Run Python code that comes with the model.")

    dataset: tuple[str, ...] = option((), group=DATA, help="Files, folders or hub ids; id:subset#500 takes a part.")
    val_dataset: tuple[str, ...] = option((), group=DATA, help="Held-out data; default: a part of the training data.")
    split_dataset_ratio: float | None = option(None, group=DATA, help="Share of the rows held out for evaluation.")
    max_length: int | None = option(None, group=DATA, help="Tokens in a sequence (a pack, where rows are packed).")
    truncation_strategy: Literal["delete", "left", "right", "split"] = option(
        "delete", group=DATA, help="What happens to rows over max_length."
    )
    packing: bool | None = option(
        None, group=DATA, help="Join rows into full sequences; attention stays inside each row."
    )
    columns: str | None = option(
        None,
        group=DATA,
        help='JSON that gives columns the names they are known by: \'{"q": "query", "a": "response"}\'.',
    )
    system: str | None = option(None, group=DATA, help="System prompt for rows that have none.")
    train_on_prompt: bool = option(False, group=DATA, help="Put the prompts into the loss too.")
    mask_history: bool = option(False, group=DATA, help="Only the last answer of a conversation is in the loss.")
    max_bad_rows: float = option(0.01, group=DATA, help="Stop when a larger share of the rows is unusable.")
    dataset_num_proc: int | None = option(None, group=DATA, help="Processes that tokenise.")

    adapters: str | None = option(
        None, group=ADAPTER, help="Adapter folder to begin with: its weights, rank, alpha and targets."
    )
    lora_rank: int | None = option(None, group=ADAPTER, help="Rank of the adapters.")
    lora_alpha: float | None = option(
        None, group=ADAPTER, help="Alpha: adapters are scaled by alpha / rank; default: twice the rank."
    )
    lora_dropout: float | None = option(None, group=ADAPTER, help="Dropout before the adapters.")
    target_modules: tuple[str, ...] = option(
        (), group=ADAPTER, help="all-linear, names of linear layers, or one regex."
    )
    modules_to_save: tuple[str, ...] = option(
        (), group=ADAPTER, help="Modules trained whole and saved with the adapter."
    )
    use_rslora: bool = option(False, group=ADAPTER, help="Scale by the square root of the rank.")
    use_dora: bool = option(False, group=ADAPTER, help="Weight-decomposed adapters (DoRA).")

    torch_dtype: Literal["float32", "float16", "bfloat16"] | None = option(
        None, group=NUMBERS, help="Type of the weights and of the arithmetic."
    )
    fp8: bool | None = option(None, group=NUMBERS, help="FP8 matrix multiplication.")
    quant_bits: Literal[4] | None = option(None, group=NUMBERS, help="4 stores the base in NF4 (what qlora means).")
    bnb_4bit_use_double_quant: bool = option(True, group=NUMBERS, help="Quantise NF4's scales as well.")
    attn_impl: Literal["varlen", "sdpa", "eager"] | None = option(None, group=NUMBERS, help="Attention kernel.")
    gradient_checkpointing: bool | None = option(
        None, group=NUMBERS, help="true: every layer; false: none; default: as many as memory demands."
    )
    activation_offloading: bool | None = option(
        None, group=NUMBERS, help="Inputs of checkpointed layers wait in host memory; default: where memory demands it."
    )
    tiled_mlp: bool | None = option(
        None, group=NUMBERS, help="MLPs take a few thousand tokens at a time; default: where memory demands it."
    )
    torch_compile: bool | None = option(None, group=NUMBERS, help="Compile each decoder layer.")

    per_device_train_batch_size: int | None = option(None, group=BATCH, help="Sequences a GPU takes at a time.")
    gradient_accumulation_steps: int | None = option(None, group=BATCH, help="Micro-batches before an optimizer step.")
    global_batch_size: int | None = option(None, group=BATCH, help="Sequences in an optimizer step, over all GPUs.")
    per_device_eval_batch_size: int | None = option(
        None, group=BATCH, help="Sequences a GPU takes at a time in evaluation."
    )

    learning_rate: float | None = option(None, group=SCHEDULE, help="Peak learning rate.")
    num_train_epochs: float | None = option(None, group=SCHEDULE, help="Passes over the data.")
    max_steps: int | None = option(None, group=SCHEDULE, help="Optimizer steps; overrides num_train_epochs.")
    warmup_ratio: float | None = option(
        None, group=SCHEDULE, help="Share of the steps in which the learning rate rises."
    )
    warmup_steps: int | None = option(
        None, group=SCHEDULE, help="Steps in which the learning rate rises; overrides warmup_ratio."
    )
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"] = option(
        "cosine", group=SCHEDULE, help="Shape of the learning rate."
    )
    optim: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] | None = option(None, group=SCHEDULE, help="Optimizer.")
    weight_decay: float | None = option(None, group=SCHEDULE, help="Weight decay.")
    adam_beta1: float = option(0.9, group=SCHEDULE, help="AdamW's first beta.")
    adam_beta2: float = option(0.95, group=SCHEDULE, help="AdamW's second beta.")
    max_grad_norm: float = option(1.0, group=SCHEDULE, help="Gradients are clipped to this norm.")
    seed: int = option(42, group=SCHEDULE, help="Seed of everything random.")

    output_dir: str | None = option(None, group=OUTPUT, help="Result folder; default: output/MODEL-TYPE-TIME.")
    overwrite_output_dir: bool = option(False, group=OUTPUT, help="Replace a run that is in the output folder.")
    save_strategy: Literal["steps", "epoch", "no"] = option("steps", group=OUTPUT, help="When checkpoints are written.")
    save_steps: int | None = option(None, group=OUTPUT, help="Steps between checkpoints.")
    save_total_limit: int | None = option(2, group=OUTPUT, help="Checkpoints kept.")
    eval_strategy: Literal["steps", "epoch", "no"] = option(
        "steps", group=OUTPUT, help="When held-out rows are evaluated."
    )
    eval_steps: int | None = option(None, group=OUTPUT, help="Steps between evaluations.")
    logging_steps: int = option(1, group=OUTPUT, help="Steps between log lines.")
    report_to: tuple[str, ...] = option(
        ("tensorboard",), group=OUTPUT, help="tensorboard, wandb, swanlab, mlflow or none."
    )
    resume_from_checkpoint: str | None = option(None, group=OUTPUT, help="auto, or a checkpoint folder.")
    resume_only_model: bool = option(
        False, group=OUTPUT, help="Take the checkpoint's weights alone: a new run, from step 0."
    )
    resume_anyway: bool = option(
        False, group=OUTPUT, help="Go on although learning rate, schedule, decay or dropout differ."
    )

    num_gpus: int | None = option(None, group=MACHINE, help="GPUs to use, on each machine.")
    nnodes: int | None = option(None, group=MACHINE, help="Machines, alike in their GPUs.")
    node_rank: int | None = option(None, group=MACHINE, help="Which of the machines this one is; 0 is the first.")
    master_addr: str | None = option(None, group=MACHINE, help="Name or address of the first machine.")
    master_port: int | None = option(None, group=MACHINE, help="Port of the first machine; default: 29500.")
    max_restarts: int = option(
        0, group=MACHINE, help="Times that a run of several machines begins again at its last checkpoint by itself."
    )
    strategy: Strategy | None = option(
        None, group=MACHINE, help="ddp: whole replicas; zero2: shards of gradients and states; fsdp2: of weights too."
    )
    sequence_parallel_size: int | None = option(None, group=MACHINE, help="GPUs that share each row's tokens.")
    network_gbps: float | None = option(
        None, group=MACHINE, help="Gbit/s between two machines, all their network cards together."
    )
    device: Literal["cuda", "cpu"] | None = option(None, group=MACHINE, help="Where to train.")

    given: tuple[str, ...] = ()
    """Not an option: the fields that the user set, sorted; an explicit value equal to the default is among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """Loss and perplexity of one or more models on the same rows."""

    model: str = option(MISSING, group=MODEL, help="Alias, hub id, local folder, GGUF file, export or adapter folder.")
    adapters: tuple[str, ...] = option((), group=MODEL, help="Adapter folders to evaluate beside the base.")
    exports: tuple[str, ...] = option((), group=MODEL, help="Export folders to evaluate beside the base.")
    hub: Hub | None = option(None, group=MODEL, help="Where hub ids are looked up: hf or modelscope.")
    trust_remote_code: bool = option(False, group=MODEL, help="Run Python code that comes with the model.")
    dataset: tuple[str, ...] = option(
        (), group=DATA, help="Files, folders or hub ids; default: the built-in test rows."
    )
    columns: str | None = option(None, group=DATA, help='JSON that renames columns: {"q": "query", "a": "response"}.')
    tasks: tuple[str, ...] = option(
        (), group=DATA, help="Tasks of lm-evaluation-harness instead of the loss: gsm8k, or gsm8k=FILE for local rows."
    )
    num_fewshot: int | None = option(None, group=DATA, help="Examples before each question; default: the task's own.")
    max_length: int | None = option(None, group=DATA, help="Tokens in a row; longer ones are left out and counted.")
    system: str | None = option(None, group=DATA, help="System prompt for rows that have none.")
    max_rows: int | None = option(None, group=DATA, help="Evaluate at most so many rows.")
    per_device_eval_batch_size: int | None = option(None, group=BATCH, help="Rows at a time.")
    device: Literal["cuda", "cpu"] | None = option(None, group=MACHINE, help="Where to evaluate.")
    output: str | None = option(None, group=OUTPUT, help="Also write the report to this JSON file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """One export of a full model or of an adapter with its base."""

    format: ExportFormat = option(MISSING, group=OUTPUT, help="merged, fp8, fp8-block, awq, gptq or int8.")
    model: str | None = option(None, group=MODEL, help="Alias, hub id or local folder; default: the adapter's base.")
    adapters: str | None = option(None, group=MODEL, help="Adapter folder.")
    hub: Hub | None = option(None, group=MODEL, help="Where hub ids are looked up: hf or modelscope.")
    trust_remote_code: bool = option(False, group=MODEL, help="Run Python code that comes with the model.")
    output_dir: str | None = option(None, group=OUTPUT, help="Export folder; default: beside the adapter.")
    overwrite_output_dir: bool = option(False, group=OUTPUT, help="Replace what is in the export folder.")
    dataset: tuple[str, ...] = option((), group=DATA, help="Calibration rows; default: the training data.")
    columns: str | None = option(None, group=DATA, help='JSON that renames columns: {"q": "query", "a": "response"}.')
    quant_n_samples: int | None = option(None, group=DATA, help="Calibration rows used.")
    max_length: int | None = option(None, group=DATA, help="Tokens of a calibration row.")
    group_size: int | None = option(None, group=NUMBERS, help="Weights that share a scale in 4-bit formats.")
    for_gpu: str | None = option(None, group=MACHINE, help="GPU that will serve the export: a10, 4090, h100 ...")
    accept_loss: bool = option(
        False, group=OUTPUT, help="Keep an export that is further from its source than its format allows, marked."
    )
    device: Literal["cuda", "cpu"] | None = option(None, group=MACHINE, help="Where to export.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """One OpenAI-compatible endpoint."""

    model: str = option(MISSING, group=MODEL, help="Alias, hub id, local folder, export or adapter folder.")
    adapters: tuple[str, ...] = option((), group=MODEL, help="Adapters served unmerged: name=DIR ...")
    hub: Hub | None = option(None, group=MODEL, help="Where hub ids are looked up: hf or modelscope.")
    trust_remote_code: bool = option(False, group=MODEL, help="Run Python code that comes with the model.")
    served_model_name: str | None = option(None, group=MODEL, help="Name in /v1/models; default: the model as given.")
    infer_backend: InferBackend | None = option(None, group=MACHINE, help="vllm, sglang or transformers.")
    vllm_python: str | None = option(None, group=MACHINE, help="Python of an environment that has vLLM or SGLang.")
    host: str = option("127.0.0.1", group=MACHINE, help="Address to bind.")
    port: int = option(8000, group=MACHINE, help="Port to bind.")
    api_key: str | None = option(None, group=MACHINE, help="Key that clients must send; better in ADAPTFT_API_KEY.")
    max_model_len: int | None = option(None, group=BATCH, help="Longest request, prompt and answer, in tokens.")
    gpu_memory_utilization: float | None = option(
        None, group=BATCH, help="Share of the GPU's memory that vLLM may take."
    )
    tensor_parallel_size: int | None = option(None, group=BATCH, help="GPUs that share each layer.")
    kv_cache_dtype: KvCacheDtype | None = option(None, group=BATCH, help="auto (as the model) or fp8 (half of it).")


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """One prompt, or a chat in the terminal."""

    model: str = option(MISSING, group=MODEL, help="Alias, hub id, local folder, export or adapter folder.")
    adapters: str | None = option(None, group=MODEL, help="Adapter folder.")
    hub: Hub | None = option(None, group=MODEL, help="Where hub ids are looked up: hf or modelscope.")
    trust_remote_code: bool = option(False, group=MODEL, help="Run Python code that comes with the model.")
    prompt: str | None = option(None, group=DATA, help="One question; without it a chat starts.")
    system: str | None = option(None, group=DATA, help="System prompt.")
    max_new_tokens: int = option(256, group=BATCH, help="Longest answer in tokens.")
    temperature: float = option(0.0, group=BATCH, help="0 is greedy.")
    seed: int = option(42, group=BATCH, help="Seed for a temperature above 0.")
    device: Literal["cuda", "cpu"] | None = option(None, group=MACHINE, help="Where to run.")
