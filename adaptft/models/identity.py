"""A short hash that tells one base model from another."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from adaptft.models.folders import read_folder_config, weight_files

_CHANGING = frozenset({"_name_or_path", "_model_name_or_path", "transformers_version"})


def fingerprint(path: Path) -> str:
    """Sixteen hexadecimal digits of the config and the sizes of the weight files; the path does not count.

    Raises:
        ModelError: the folder has no config or no weights.
    """
    config = {key: value for key, value in read_folder_config(path).items() if key not in _CHANGING}
    sizes = {file.name: file.stat().st_size for file in weight_files(path)}
    text = json.dumps([config, sizes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
