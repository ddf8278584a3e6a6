"""Text from tokens: the same in pieces as whole, no half characters, nothing of a stop text."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptft.models import load_tokenizer
from adaptft.models.text_streams import StopTexts, TokenText

TEXTS = [" a blank first", "巴黎是法国的首都。", "naïve café 🙂🙂", "x", "line\n\n  indented"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_are_the_text(tiny_qwen2: Path, text: str) -> None:
    tokenizer = load_tokenizer(tiny_qwen2)
    tokens = TokenText(tokenizer)
    pieces = [tokens.push([i]) for i in tokenizer(text)["input_ids"]]
    assert "".join([*pieces, tokens.end()]) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_character_that_is_cut_at_any_byte_is_left_out(tiny_qwen2: Path) -> None:
    tokenizer = load_tokenizer(tiny_qwen2)
    ids = tokenizer("Paris 巴黎")["input_ids"]
    assert len(ids) > 5, "the tiny vocabulary has bytes for Chinese"
    for length in range(len(ids) + 1):
        tokens = TokenText(tokenizer)
        text = tokens.push(ids[:length]) + tokens.end()
        assert "Paris 巴黎".startswith(text)
        assert "\N{REPLACEMENT CHARACTER}" not in text


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "found"),
    [
        (("Paris",), ["It is Pa", "ris, yes"], "It is ", True),
        (("Paris",), ["It is Pa", "nama"], "It is Panama", False),
        (("Paris",), ["It is Pa"], "It is Pa", False),
        (("aab",), ["aa", "ab"], "a", True),
        (("b", "ab"), ["xa", "b"], "x", True),
        ((), ["all", " of it"], "all of it", False),
    ],
)
def test_a_stop_text_ends_the_text_before_it(
    stops: tuple[str, ...], pieces: list[str], expected: str, found: bool
) -> None:
    filtered = StopTexts(stops)
    said = [filtered.push(piece) for piece in pieces]
    assert "".join([*said, filtered.end()]) == expected
    assert filtered.found == found
