"""Tables of Hugging Face and ModelScope, through their own libraries. No code that comes with data is run."""

from __future__ import annotations

from typing import Any

from adaptft.data.sources import Source
from adaptft.errors import DataError
from adaptft.optional import offline_by, require

_OFFLINE = (
    "Without a network, name a local file or folder: on a connected machine download the data set "
    "({download}) and copy the folder here. Leave out --dataset for the built-in rows."
)
_DOWNLOAD = {
    "hf": "hf download --repo-type dataset {id} --local-dir DIR",
    "modelscope": "modelscope download --dataset {id} --local_dir DIR",
}


def load_table(source: Source) -> Any:
    """The source's rows as a ``datasets.Dataset`` (memory-mapped from its own cache on the next start).

    Raises:
        DataError: unreachable, unknown, private or without such a subset or split; says what to do offline.
        MissingPackage: ModelScope's library is needed and absent.
    """
    try:
        loaded = _load_modelscope(source) if source.hub == "modelscope" else _load_hugging_face(source)
    except (OSError, ValueError, RuntimeError) as cause:
        raise _unreachable(source, cause) from cause
    return _one_split(loaded, source)


def _load_hugging_face(source: Source) -> Any:
    import datasets

    return datasets.load_dataset(source.hub_id, source.subset, split=source.split)


def _load_modelscope(source: Source) -> Any:
    require("modelscope", purpose=f"The data set {source.name} on ModelScope")
    from modelscope.msdatasets import MsDataset

    loaded = MsDataset.load(source.hub_id, subset_name=source.subset or "default", split=source.split)
    return loaded.to_hf_dataset() if hasattr(loaded, "to_hf_dataset") else loaded


def _one_split(loaded: Any, source: Source) -> Any:
    """``train`` of several splits, or the only one there is.

    Raises:
        DataError: several splits and none is called train.
    """
    if not isinstance(loaded, dict):
        return loaded
    if "train" in loaded:
        return loaded["train"]
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    raise DataError(
        f"{source.name} has the parts {', '.join(loaded)} and none called train.",
        fix="Download it and name the file of the part that you want.",
    )


def _unreachable(source: Source, cause: Exception) -> DataError:
    where = {"hf": "Hugging Face", "modelscope": "ModelScope"}[source.hub]
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0][:200]
    if (variable := offline_by()) and source.hub == "hf":
        reason = f"{variable} is set, which forbids the network, and the data was not downloaded before"
    download = _DOWNLOAD[source.hub].format(id=source.hub_id)
    return DataError(
        f"Cannot load the data set {source.hub_id} from {where}: {reason.rstrip('.')}.",
        fix=_OFFLINE.format(download=download),
    )
