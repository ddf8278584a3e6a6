"""What makes a run that run: a frozen value, written with every checkpoint and compared before one is gone on from.

How a step is cut (micro-batch, accumulation, ranks) and when things are written are no part of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft.errors import RequestError

DECAYING = ("cosine", "linear")
"""Kinds of schedule in which every step's learning rate depends on how many steps there are."""
READING = ("seed", "dataset", "split_dataset_ratio", "system", "train_on_prompt", "mask_history", "model")
"""What explains that the rows are others."""

SAFE = frozenset(
    {
        "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "max_grad_norm", "lr_scheduler_type",
        "warmup_steps", "max_steps", "lora_dropout", "val_dataset",
    }
)  # fmt: skip
"""What may change on the way, if one wants it so: the same weights learn the same rows in another manner."""
SHAPING = frozenset(
    {
        "model", "model_fingerprint", "train_type", "lora_rank", "lora_alpha", "target_modules", "modules_to_save",
        "use_rslora", "use_dora",
    }
)  # fmt: skip
"""What decides which weights there are and what they mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Everything that a step's result depends on; names are those of options where there is one.

    ``rows_hash`` is of the tokenised training rows, before they are cut and packed; ``model_fingerprint`` as in
    adaptft.json. ``max_steps`` is what the run does, however it was asked for.
    """

    model: str
    model_fingerprint: str
    train_type: str
    dataset: tuple[str, ...]
    rows_hash: str
    val_dataset: tuple[str, ...]
    split_dataset_ratio: float
    system: str | None
    train_on_prompt: bool
    mask_history: bool
    truncation_strategy: str
    max_length: int
    packing: bool
    global_batch_size: int
    lora_rank: int
    lora_alpha: float
    lora_dropout: float
    target_modules: tuple[str, ...]
    modules_to_save: tuple[str, ...]
    use_rslora: bool
    use_dora: bool
    optim: str
    learning_rate: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    max_grad_norm: float
    lr_scheduler_type: str
    warmup_steps: int
    max_steps: int
    seed: int


def differences(before: RunIdentity, now: RunIdentity) -> tuple[str, ...]:
    """Names of the fields in which ``now`` would not go on with the run of ``before``.

    Other names of the same model and the same rows do not count, nor does the number of steps where the learning
    rate does not depend on it.
    """
    names = {f.name for f in dataclasses.fields(now) if getattr(before, f.name) != getattr(now, f.name)}
    if "model_fingerprint" not in names:
        names.discard("model")
    elif "model" in names:
        names.discard("model_fingerprint")
    if "rows_hash" not in names:
        names -= {"dataset", "system", "train_on_prompt", "mask_history"}
    elif names & set(READING):
        names.discard("rows_hash")
    if now.lr_scheduler_type not in DECAYING and before.lr_scheduler_type == now.lr_scheduler_type:
        names.discard("max_steps")
    if "max_steps" in names or now.lr_scheduler_type == "constant":
        names.discard("warmup_steps")  # they follow the number of steps; a constant rate has none
    return tuple(f.name for f in dataclasses.fields(now) if f.name in names)


def require_same_run(folder: Path, before: RunIdentity, now: RunIdentity, *, anyway: bool = False) -> str:
    """Refuse to go on from the checkpoint in ``folder`` with another run.

    Args:
        anyway: go on where the differences are ``SAFE`` ones.

    Returns:
        What differs all the same, in words; empty where nothing does.

    Raises:
        RequestError: names everything that differs, and the options that go on.
    """
    names = differences(before, now)
    if not names:
        return ""
    said = "; ".join(_difference(name, before, now) for name in names)
    if anyway and set(names) <= SAFE:
        return said
    options = " ".join(filter(None, (_option(name, getattr(before, name)) for name in names)))
    why = " (the learning rate follows the number of steps)" if "max_steps" in names else ""
    ways = [f"Go on with {options}"] if options else []
    ways += ["go on all the same with --resume_anyway true"] if set(names) <= SAFE else []
    ways += ["start a new run in another --output_dir"]
    fix = ", or ".join(ways)
    raise RequestError(f"{folder} is of another run: {said}.", fix=f"{fix[0].upper()}{fix[1:]}{why}.")


def require_same_weights(folder: Path, before: RunIdentity, now: RunIdentity) -> None:
    """Refuse to begin with the weights in ``folder`` where they are not weights of this plan's model and adapters.

    Raises:
        RequestError: names what differs.
    """
    names = [name for name in differences(before, now) if name in SHAPING]
    if names:
        said = "; ".join(_difference(name, before, now) for name in names)
        options = " ".join(filter(None, (_option(name, getattr(before, name)) for name in names)))
        raise RequestError(
            f"The weights in {folder} do not fit this plan: {said}.",
            fix=f"Use {options}." if options else "Use the model that they were trained on.",
        )


def _difference(name: str, before: RunIdentity, now: RunIdentity) -> str:
    if name == "rows_hash":
        return f"the rows of {_words(now.dataset) or 'the built-in data'} have changed since"
    if name == "model_fingerprint":
        return f"the model in {now.model} has changed since"
    return (
        f"{name} {_words(getattr(before, name)) or 'not set'} there and {_words(getattr(now, name)) or 'not set'} here"
    )


def _option(name: str, value: Any) -> str:
    if name in ("rows_hash", "model_fingerprint", "warmup_steps") or not _words(value):
        return ""
    return f"--{name} {_words(value)}"


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(value)
    return f"{value:g}" if isinstance(value, float) else str("" if value is None else value)
