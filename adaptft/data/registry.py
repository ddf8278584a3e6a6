"""LLaMA-Factory's dataset_info.json, honoured where it lies beside the data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from adaptft.data.messages import CONTENT_KEYS, ROLE_KEYS, Spoken, Tags
from adaptft.errors import DataError

FILE_NAME = "dataset_info.json"
REGISTERED_ELSEWHERE = frozenset(
    {
        "identity", "alpaca_en_demo", "alpaca_zh_demo", "glaive_toolcall_en_demo", "glaive_toolcall_zh_demo",
        "mllm_demo", "mllm_audio_demo", "mllm_video_demo", "mllm_video_audio_demo", "reason_tool_use_demo_1500",
        "dpo_en_demo", "dpo_zh_demo", "kto_en_demo", "wiki_demo", "c4_demo", "alpaca_en", "alpaca_zh",
        "alpaca_gpt4_en", "alpaca_gpt4_zh", "glaive_toolcall_en", "glaive_toolcall_zh",
    }
)  # fmt: skip
"""What LLaMA-Factory's example configs name, and no hub knows."""

# Its column keys and the names under which detection knows them.
_COLUMNS = {
    "prompt": "instruction", "query": "input", "response": "output", "history": "history", "messages": "messages",
    "system": "system", "tools": "tools", "chosen": "chosen", "rejected": "rejected", "kto_tag": "kto_tag",
}  # fmt: skip
_ROLE_TAGS: dict[str, Spoken] = {
    "user_tag": "user", "assistant_tag": "assistant", "observation_tag": "tool", "function_tag": "call",
    "system_tag": "system",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One entry: where the rows are and what their columns and roles are called."""

    file_name: str | None
    hub: Literal["hf", "modelscope"] = "hf"
    hub_id: str | None = None
    subset: str | None = None
    split: str | None = None
    num_samples: int | None = None
    renames: dict[str, str] = field(default_factory=dict)
    tags: Tags = field(default_factory=Tags)

    def refuse_unusable(self, path: Path) -> None:
        """Stop at entries that need code.

        Raises:
            DataError: a place other than a file or a hub.
        """
        if self.file_name is None and self.hub_id is None:
            raise DataError(
                f"{path} is registered with neither file_name, hf_hub_url nor ms_hub_url.",
                fix=f"Add one of them to {FILE_NAME}; scripts are not run.",
            )


def read_registry(folder: Path) -> dict[str, Registered]:
    """The entries of ``folder/dataset_info.json``; empty without one, or where it is another tool's file.

    Raises:
        DataError: the file is not JSON.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as cause:
        raise DataError(f"{path} is broken JSON: {cause}.", fix="Mend or remove it.") from cause
    if not isinstance(entries, dict):
        return {}
    places = ("file_name", "hf_hub_url", "ms_hub_url", "script_url", "cloud_file_name", "columns")
    return {
        name: _entry(entry)
        for name, entry in entries.items()
        if isinstance(entry, dict) and any(place in entry for place in places)
    }


def _entry(entry: dict[str, Any]) -> Registered:
    columns = entry.get("columns") or {}
    return Registered(
        file_name=entry.get("file_name"),
        hub="hf" if entry.get("hf_hub_url") else "modelscope",
        hub_id=entry.get("hf_hub_url") or entry.get("ms_hub_url"),
        subset=entry.get("subset"),
        split=entry.get("split"),
        num_samples=entry.get("num_samples"),
        renames={_COLUMNS[key]: str(name) for key, name in columns.items() if key in _COLUMNS and name},
        tags=_tags(entry.get("tags") or {}),
    )


def _tags(tags: dict[str, Any]) -> Tags:
    roles = tuple((str(tags[key]), spoken) for key, spoken in _ROLE_TAGS.items() if key in tags)
    return Tags(
        role_keys=(str(tags["role_tag"]),) if "role_tag" in tags else ROLE_KEYS,
        content_keys=(str(tags["content_tag"]),) if "content_tag" in tags else CONTENT_KEYS,
        roles=roles,
    )
