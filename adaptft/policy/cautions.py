"""What a plan warns of: tight memory, idle GPUs that are paid for, small data, old cards, days on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

from adaptft.policy.arrangements import NO_GAIN
from adaptft.policy.assumed import is_assumed
from adaptft.policy.candidate import Candidate
from adaptft.policy.schedules import asks_for_evaluation, num_sequences
from adaptft.policy.setting import Setting
from adaptft.policy.speed import training_flops

TIGHT_SHARE = 0.9
"""More than this of a device that nobody looked at, or that others use, is warned of."""
LONG_WAIT = 0.25
"""Of a step, waiting for other GPUs."""
SHARED_ROW_TOKENS = 8192
"""Rows as long as this are worth sharing where GPUs would idle."""
OLDEST_OF_CUDA_13 = (7, 5)
ASSUMED_CPU_FLOPS = 1e12
LONG_ON_CPU_FLOPS = 3600 * ASSUMED_CPU_FLOPS


def pays_for_all(setting: Setting) -> bool:
    """GPUs that were named to ``plan`` are rented, used or not; on a machine that is there others may be somebody's."""
    return is_assumed(setting.machine) and setting.request.num_gpus is None


def cautions(chosen: Candidate) -> Iterator[str]:
    """One line each."""
    method, setting = chosen.decisions.method.value, chosen.setting
    dataset = setting.dataset
    in_bf16 = method.train_type == "full" and chosen.decisions.precision.value.weights == "bf16"
    if chosen.fits and in_bf16 and not chosen.decisions.optimizer.value.stochastic_rounding:
        yield "Weights in bf16 lose small updates; lora, or memory for FP32 weights, is more exact."
    if dataset.assumed:
        tokens = f"{dataset.mean_row_tokens:.0f} tokens"
        yield f"The data was not measured: {dataset.num_rows} rows of {tokens} are assumed."
    yield from _device_warnings(setting, chosen)
    yield from _room_warnings(setting, chosen)
    yield from _waiting_warnings(chosen)
    yield from _small_data_warnings(setting, chosen)
    if asks_for_evaluation(setting.request) and not chosen.decisions.schedule.value.eval_steps:
        yield "Evaluation is asked for, and no rows are held out: name --val_dataset, or set --split_dataset_ratio."
    if method.lora_dropout and setting.gpu:
        yield "LoRA dropout keeps a copy of each layer's input, which is not in the memory estimate."


def _room_warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    """GPUs that stay idle, and memory that is planned for to the last gigabyte."""
    placement = setting.placement.value
    there, used = len(setting.machine.gpus) * placement.nodes, placement.num_gpus
    if 0 < used < there and pays_for_all(setting):
        yield f"{used} of the {there} GPUs {'is' if used == 1 else 'are'} used: {_why_idle(setting)} " + (
            f"The cost is that of all {there}."
        )
    share = chosen.memory.needed_bytes / max(chosen.memory.capacity_bytes, 1)
    if chosen.fits and share > TIGHT_SHARE and (setting.gpu is None or is_assumed(setting.machine)):
        where = "the host, which other programs share" if setting.gpu is None else "a GPU that is taken to be idle"
        layers = chosen.decisions.checkpointing.value
        leaner = "--gradient_checkpointing true" if layers.layers < layers.of else "a shorter --max_length"
        yield f"Tight: {share:.0%} of the memory of {where}; {leaner} leaves more room."


def _why_idle(setting: Setting) -> str:
    if NO_GAIN in setting.placement.reason:
        return "more of them would be slower."
    wanted = setting.global_batch_size
    share = " (--sequence_parallel_size 2 shares its rows)" if setting.max_length >= SHARED_ROW_TOKENS else ""
    return f"a step of {wanted} sequence{'s' * (wanted != 1)} does not divide among more{share}."


def _waiting_warnings(chosen: Candidate) -> Iterator[str]:
    """Steps too small for what the GPUs exchange in each of them."""
    speed, batch = chosen.speed, chosen.decisions.batch.value
    share = speed.waiting_seconds / speed.step_seconds if speed else 0.0
    if chosen.fits and share > LONG_WAIT:
        yield (
            f"GPUs wait for each other {share:.0%} of each step: more tokens at a time (--global_batch_size above "
            f"{batch.global_batch_size}, a longer --max_length) hide more of what they exchange."
        )


def _small_data_warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    """Data that does not fill a single step."""
    batch = chosen.decisions.batch.value
    sequences = num_sequences(setting.dataset, setting.held_out[0], batch.max_length, batch.packing)
    if sequences < batch.global_batch_size:
        yield (
            f"The data has {sequences} sequence{'s' * (sequences != 1)}, and a step takes {batch.global_batch_size}: "
            "every step is all of it. A smaller --global_batch_size makes more steps of it."
        )


def _device_warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    """What takes days on a CPU, and a torch that has no kernels for an old card."""
    software, gpu = setting.machine.software, setting.gpu
    if gpu is None:
        batch, steps = chosen.decisions.batch.value, chosen.decisions.schedule.value.max_steps
        row_tokens = batch.max_length if batch.packing else min(batch.max_length, setting.dataset.mean_row_tokens)
        tokens = batch.global_batch_size * row_tokens * steps
        work = training_flops(setting.model, chosen.decisions.method.value.train_type) * tokens
        if work > LONG_ON_CPU_FLOPS and chosen.fits:
            hours = work / ASSUMED_CPU_FLOPS / 3600
            yield f"On a CPU this takes long: {hours:.0f} hours at 1 TFLOP/s, which few CPUs reach."
    elif (gpu.compute_capability or (0, 0)) < OLDEST_OF_CUDA_13 and (software.torch_cuda or "").startswith("13"):
        yield (
            f"torch for CUDA {software.torch_cuda} has no kernels for {gpu.name}: install a build for CUDA 12 that "
            "has sm_70 in torch.cuda.get_arch_list()."
        )
