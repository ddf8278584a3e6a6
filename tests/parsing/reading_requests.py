"""Reading a request from options or from YAML text, in one line."""

from pathlib import Path
from typing import Any

from adaptft.parsing import Parsed, parse_request
from adaptft.requests import TrainRequest


def from_options(**options: Any) -> Parsed[TrainRequest]:
    return parse_request(TrainRequest, {"model": "m"} | options)


def from_yaml(folder: Path, text: str, **options: Any) -> Parsed[TrainRequest]:
    recipe = folder / "recipe.yaml"
    recipe.write_text(text, encoding="utf-8")
    return parse_request(TrainRequest, {"model": "m"} | options, recipe)
