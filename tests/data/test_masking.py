"""The loss mask under templates of every habit: ids before an answer are what serving sends."""

from __future__ import annotations

import pytest

from adaptft import data
from adaptft.errors import DataError

TURNS = [
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": "It is that."},
    {"role": "user", "content": "  Is it? "},
    {"role": "assistant", "content": "\n\nIt is this.\n"},
]
CHAT_TEMPLATES = ["qwen2.5", "qwen3", "no_system", "no_generation_prompt", "no_end_of_turn", "prints_arguments", "inst"]


@pytest.mark.parametrize("prefix_space", [False, True], ids=["seamless", "prefix space"])
@pytest.mark.parametrize("template", CHAT_TEMPLATES)
def test_ids_before_the_last_answer_are_what_serving_sends(read, tokenizer_with, template, prefix_space):
    tokenizer = tokenizer_with(template, prefix_space=prefix_space)
    rows = read([{"messages": TURNS}], tokenizer)
    served = tokenizer.apply_chat_template(TURNS[:-1], add_generation_prompt=True, return_dict=False)
    moved = any("tokenises otherwise" in warning for warning in rows.report.warnings)
    assert rows.before_last_answer() == served or moved
    assert not (moved and not prefix_space), "byte-level tokenizers have no seam"
    assert "It is this." in rows.trained()[-1]
    assert not any("What" in text or "Is it?" in text for text in rows.trained())


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        ("qwen2.5", ["It is that.<|im_end|>", "\n\nIt is this.\n<|im_end|>"]),
        ("no_system", ["It is that.<|im_end|>", "It is this.<|im_end|>"]),
        ("inst", [" It is that.<|endoftext|>", " \n\nIt is this.\n<|endoftext|>"]),
        ("no_end_of_turn", [" It is that.", "\n\nIt is this.<|im_end|>"]),
        (
            "no_generation_prompt",
            ["<|im_start|>assistant\nIt is that.<|im_end|>", "<|im_start|>assistant\n\n\nIt is this.\n<|im_end|>"],
        ),
    ],
)
def test_answers_are_trained_with_their_end_of_turn(read, template, answers):
    assert read([{"messages": TURNS}], template).trained() == answers


@pytest.mark.parametrize(
    ("template", "warning"),
    [
        ("no_generation_prompt", "adds no generation prompt"),
        ("no_end_of_turn", "ends answers with no token"),
        ("no_system", "has no system role"),
    ],
)
def test_odd_templates_are_warned_about_with_the_count(read, template, warning):
    messages = [{"role": "system", "content": "Be brief."}, *TURNS] if template == "no_system" else TURNS
    rows = read([{"messages": messages}] * 3, template)
    assert any(text.startswith("3 rows: ") and warning in text for text in rows.report.warnings)
    assert template != "no_system" or "<|im_start|>user\nBe brief.\n\nWhat is it?" in rows.texts()[0]


def test_row_that_the_template_refuses_is_rejected_in_its_words(read):
    twice = {"messages": [TURNS[0], *TURNS]}
    reason = "refused by the chat template (Conversation roles must alternate)"
    assert read([{"messages": TURNS}, twice], "no_system").rejected() == {reason: (2,)}


def test_conversations_without_a_template_are_refused_and_plain_text_is_not(read):
    with pytest.raises(DataError, match="has no chat template") as error:
        read([{"messages": TURNS}], None)
    assert "chat_template.jinja" in error.value.fix
    rows = read([{"text": "Once upon a time."}], None)
    assert rows.trained() == ["Once upon a time.<|im_end|>"]
    assert rows.report.in_the_loss == "all of the text"


def test_train_on_prompt_trains_everything_up_to_the_last_end_of_turn(read):
    rows = read([{"messages": TURNS}], train_on_prompt=True)
    assert rows.trained() == [rows.texts()[0].rstrip("\n")]


@pytest.mark.parametrize("key", [{"loss": False}, {"weight": 0}, {"train": False}])
def test_messages_may_keep_themselves_out_of_the_loss(read, key):
    turns = [TURNS[0], {**TURNS[1], **key}, *TURNS[2:]]
    assert read([{"messages": turns}]).trained() == ["\n\nIt is this.\n<|im_end|>"]
    with pytest.raises(DataError, match="nothing in the loss"):
        read([{"messages": [TURNS[0], {**TURNS[1], **key}]}])


def test_conversation_that_begins_with_the_assistant_keeps_its_later_answers(read):
    rows = read([{"messages": [{"role": "assistant", "content": "Hello!"}, *TURNS[:2]]}])
    assert rows.trained() == ["It is that.<|im_end|>"]
    assert any("earlier answers are not in the loss" in warning for warning in rows.report.warnings)


def test_turns_after_the_last_answer_are_left_out_and_counted(read):
    rows = read([{"messages": TURNS[:3]}])
    assert rows.trained() == ["It is that.<|im_end|>"]
    assert "Is it?" not in rows.texts()[0]
    assert rows.report.warnings == ("1 row: turns after the last answer were left out (line 1 of rows.jsonl).",)


def test_sample_shows_what_is_in_the_loss_without_colour(read):
    lines = data.sample_lines(read([{"messages": TURNS[:2]}]).sample)
    assert "<|im_start|>assistant\n⟦It is that.<|im_end|>⟧\n" in lines
    assert lines.endswith('Text in the loss:\n  "It is that.<|im_end|>"')
    assert lines.startswith("Sample: line 1 of rows.jsonl, ")
