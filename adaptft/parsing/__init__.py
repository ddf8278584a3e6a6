"""From what people write (options, YAML) to requests."""

from __future__ import annotations

from adaptft.parsing.reading import Parsed, known_keys, parse_request

__all__ = ["Parsed", "known_keys", "parse_request"]
