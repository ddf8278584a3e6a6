"""Reading config.json: every field checked, so that a wrong one is named instead of planned with."""

from __future__ import annotations

from typing import Any

from adaptft.errors import ModelError

_LARGEST = 2**24  # no width, vocabulary or position of a real model comes near


class Fields:
    """The fields of one config.json; ``defaults`` holds what the family takes where a field is left out."""

    def __init__(self, config: dict[str, Any], name: str, defaults: dict[str, Any] | None = None) -> None:
        self.config = config
        self.name = name
        self.defaults = defaults or {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or the family's default where it is missing or null, or ``default``."""
        value = self.config.get(key)
        return self.defaults.get(key, default) if value is None else value

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number.

        Raises:
            ModelError: it is missing, no whole number, below ``least`` or absurdly large.
        """
        value = self.get(key, default)
        if value is None:
            raise self.error(f"has no {key}", "Take the config.json that was published with the weights.")
        if type(value) is not int or not least <= value <= _LARGEST:
            raise self.error(f"has {key} = {value!r}", f"{key} must be a whole number from {least} to {_LARGEST}.")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false.

        Raises:
            ModelError: the value is neither.
        """
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"has {key} = {value!r}", f"{key} must be true or false.")
        return value

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, empty where it is missing.

        Raises:
            ModelError: the value is something else.
        """
        value = self.get(key, [])
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise self.error(f"has {key} = {value!r}", f"{key} must be a list of layer numbers.")
        return tuple(value)

    def error(self, problem: str, fix: str) -> ModelError:
        """A ModelError that names the model: "The config.json of NAME ``problem``."."""
        return ModelError(f"The config.json of {self.name} {problem}.", fix=fix)
