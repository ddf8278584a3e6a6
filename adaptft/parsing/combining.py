"""Keys that have a meaning only together: bf16 with fp16, dataset with dataset_dir and max_samples, model_name."""

from __future__ import annotations

from collections.abc import Mapping

from adaptft.parsing.datasets import flatten_entries, in_directory, limit_rows
from adaptft.parsing.given import Given
from adaptft.parsing.values import NONE, read_bool

COMBINED: dict[str, tuple[str, ...]] = {"TrainRequest": ("bf16", "fp16", "dataset_dir", "max_samples", "model_name")}

SELF_COGNITION = "{{NAME}} and {{AUTHOR}} in rows of swift/self-cognition are not filled in; write them into the file"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def combine(pairs: list[tuple[str, Given]], combined: Mapping[str, Given], notes: list[str]) -> list[tuple[str, Given]]:
    """``pairs`` of field and value with the keys of ``COMBINED`` worked into them.

    Raises:
        RequestError: they contradict each other, or ask for data that is not there.
    """
    limit = combined.get("max_samples")
    if limit is not None and limit.word not in NONE and "dataset" not in dict(pairs):
        raise limit.wrong(
            "stands without a dataset", fix="Name the dataset beside it, or write dataset: data.jsonl#500."
        )
    pairs = [(name, _sources(name, given, combined)) for name, given in pairs]
    return pairs + _precision(combined, notes) + _model_name(dict(pairs), combined, notes)


def _model_name(
    pairs: Mapping[str, Given], combined: Mapping[str, Given], notes: list[str]
) -> list[tuple[str, Given]]:  # fmt: skip
    """The model, as older TRL has it; beside a model it is the name in ms-swift's self-cognition rows."""
    given = combined.get("model_name")
    if given is None or given.raw is None:
        return []
    if "model" not in pairs:
        return [("model", given)]
    notes.append(f"{given.label} changes nothing: {SELF_COGNITION}.")
    return []


def _sources(name: str, given: Given, combined: Mapping[str, Given]) -> Given:
    if name not in ("dataset", "val_dataset") or given.raw is None:
        return given
    given = flatten_entries(given)
    directory, limit = combined.get("dataset_dir"), combined.get("max_samples")
    if directory is not None and directory.raw is not None:
        given = in_directory(given, directory)
    if name == "dataset" and limit is not None and limit.word not in NONE:
        given = limit_rows(given, limit)
    return given


def _precision(combined: Mapping[str, Given], notes: list[str]) -> list[tuple[str, Given]]:
    """bf16 and fp16 as transformers means them: one of them, or float32 where what is written is false."""
    switches = {key: _is_on(given) for key, given in combined.items() if key in _DTYPES}
    switches = {key: on for key, on in switches.items() if on is not None}
    on = [key for key, value in switches.items() if value]
    if len(on) == 2:
        raise combined["bf16"].wrong(f"contradicts {combined['fp16'].label}", fix="Keep one of the two.")
    if on:
        return [("torch_dtype", combined[on[0]].with_raw(_DTYPES[on[0]]))]
    if not switches:
        return []
    given = combined[next(iter(switches))]
    notes.append(f"{given.label} and no other 16-bit type: torch_dtype float32. Leave it out to let adaptft decide.")
    return [("torch_dtype", given.with_raw("float32"))]


def _is_on(given: Given) -> bool | None:
    if given.raw is None or given.word in NONE | {"auto"}:
        return None
    return True if given.word == "full" else read_bool(given, auto=True)
