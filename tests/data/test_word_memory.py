"""Words remembered by themselves have the ids that the tokenizer gives the whole text, whatever the text is."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from adaptft.data import words
from adaptft.data.encoding import Encoder
from adaptft.data.masking import MaskedText
from adaptft.data.words import WordMemory, cuts_between_words

CORPUS = [
    "It's 12 o'clock, they'll say: don't go.",
    "def f(x):\n    return x + 1\n\n",
    "Ünïted naïve cafe\u0301 的 一 二",
    "x  y\t z",
]
ODD = (
    " ", "  ", "   ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\u200b", "\u180e",
    "\ufeff", "\u0301", "\u0327", "\u1161", "e", "É", "a", "the", " they'LL", "'s", "'", "12", "9", "٣", "½", ".", "!?",
    "/", "_", "\0", "的", "각", "😀", "👩\u200d🚀", "<|im_end|>", "<|im_", "ﬁ", "ſ",
)  # fmt: skip
texts = st.lists(st.sampled_from(ODD) | st.text(max_size=3), max_size=25).map("".join)


def byte_level(**settings):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False} | settings)


def split_by(regex, behavior="isolated"):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), behavior), byte_level()])


def backend(pre_tokenizer, normalizer=None, model=None, special=()):
    tokenizer = Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|im_end|>"],
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


@st.composite
def masked(draw):
    """A text with spans in the loss, which may begin and end in words; they never end in white space (``mask``)."""
    text = draw(texts.filter(str.strip))
    edges = sorted(draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=8)))
    ends = ((start, len(text[:end].rstrip())) for start, end in zip(edges[::2], edges[1::2], strict=False))
    spans = tuple((start, end) for start, end in ends if start < end) or ((0, len(text.rstrip())),)
    return MaskedText(text=text, spans=spans, prompt_end=spans[-1][0])


REGEXES = sorted(words.CUTTING)
KNOWN = {
    "gpt2": backend(byte_level(use_regex=True)),
    "smollm2": backend(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)])
    ),
    **{f"regex {number}": backend(split_by(regex), normalizers.NFC()) for number, regex in enumerate(REGEXES)},
}
KNOWN["trimmed offsets"] = backend(byte_level(use_regex=True))
KNOWN["trimmed offsets"].post_processor = processors.ByteLevel(trim_offsets=True)
REACHING = {
    "a space before the text": backend(byte_level(use_regex=True, add_prefix_space=True)),
    "no cut at all": backend(byte_level()),
    "a regular expression that is not known": backend(split_by(r"\S+ ?\S*")),
    "matches joined with their neighbours": backend(split_by(REGEXES[0], "merged_with_next")),
    "bytes before the cut": backend(
        pre_tokenizers.Sequence([byte_level(), pre_tokenizers.Split(Regex(REGEXES[0]), "isolated")])
    ),
    "spaces as letters": backend(pre_tokenizers.Metaspace()),
    "another normal form": backend(byte_level(use_regex=True), normalizers.NFKC()),
    "dropout": backend(byte_level(use_regex=True), model=models.BPE(dropout=0.5)),
    "a token that takes spaces along": backend(byte_level(use_regex=True), special=[AddedToken("<x>", lstrip=True)]),
    "a token of two words": backend(byte_level(use_regex=True), special=[AddedToken("<a b>")]),
    "a token that is a word": backend(byte_level(use_regex=True), special=[AddedToken("x", single_word=True)]),
}


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=st.lists(texts, max_size=4))
def test_words_have_the_ids_of_the_whole_text(name, batch):
    assert cuts_between_words(KNOWN[name])
    memory = WordMemory(KNOWN[name])
    for _ in range(2):  # learned, then remembered
        ids = [row.tolist() for row in memory.encode(batch)]
        assert ids == [KNOWN[name].encode(text, add_special_tokens=False).ids for text in batch]


WHOLE_OFFSETS = [name for name in KNOWN if name != "trimmed offsets"]
"""Trimmed ones place a token of white space beside itself: whole texts then lose it at the ends of a span."""


@pytest.mark.parametrize("name", WHOLE_OFFSETS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(masked(), min_size=1, max_size=3))
def test_what_is_in_the_loss_is_the_same_with_and_without_words(name, rows):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=KNOWN[name], eos_token="<|im_end|>")
    by_words, by_texts = Encoder(tokenizer), Encoder(tokenizer)
    by_texts._memory = None
    for found, wanted in zip(by_words.tokens(rows), by_texts.tokens(rows), strict=True):
        assert found.ids.tolist() == wanted.ids.tolist()
        assert found.trained.tolist() == wanted.trained.tolist()


@pytest.mark.parametrize("name", REACHING)
def test_a_tokenizer_that_may_look_beyond_a_word_is_asked_for_whole_texts(name):
    assert not cuts_between_words(REACHING[name])


def test_the_model_s_own_tokenizer_is_asked_once_for_each_word(tokenizer_with):
    tokenizer = tokenizer_with("qwen2.5")
    assert Encoder(tokenizer)._memory is not None
    asked = []

    class Counting:
        def encode_batch_fast(self, texts, **settings):
            asked.extend(texts)
            return tokenizer.backend_tokenizer.encode_batch_fast(texts, **settings)

    memory = WordMemory(Counting())
    memory.encode(["one two one", "two one\n"])
    memory.encode(["one two three"])
    assert sorted(asked) == [" one", " one\n", " three", " two", "one", "two"]


def test_what_is_remembered_has_a_limit_and_ids_stay_the_same(monkeypatch):
    monkeypatch.setattr(words, "MOST_BYTES", 1000)
    memory = WordMemory(KNOWN["gpt2"])
    for number in range(50):
        text = f"word {number} and {number * 7} again"
        assert memory.encode([text])[0].tolist() == KNOWN["gpt2"].encode(text).ids
        assert memory._bytes <= 1000
        assert bool(memory._ids) == bool(memory._bytes)
