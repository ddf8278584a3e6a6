"""Reasoning: generation prompts that open it, templates that strip it, answers with all, half and none of it."""

from __future__ import annotations

import pytest

WHOLE = "<think>\n9 = 3 * 3.\n</think>\n\nNo."
ONLY_CLOSED = "9 = 3 * 3.\n</think>\n\nNo."
QUESTION = {"role": "user", "content": "Is 9 prime?"}


def ask(answer: object, **more: object) -> dict:
    return {"messages": [QUESTION, {"role": "assistant", "content": answer, **more}]}


def served(tokenizer, messages: list[dict], **options: object) -> list[int]:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **options)


@pytest.mark.parametrize("template", ["opens_think", "strips_all_reasoning"])
@pytest.mark.parametrize(
    "row",
    [
        ask(WHOLE),
        ask(ONLY_CLOSED),
        ask("<think>9 = 3 * 3.</think>No."),
        ask("\n" + WHOLE),
        ask("No.", reasoning_content="9 = 3 * 3."),
        ask("No.", reasoning="\n9 = 3 * 3.\n"),
    ],
)
def test_generation_prompt_opens_the_tag_once_and_the_answer_goes_on_from_there(read, template, row):
    rows = read([row], template)
    assert rows.texts()[0].count("<think>") == 1
    end = "<|endoftext|>" if template == "strips_all_reasoning" else "<|im_end|>"
    squeezed = rows.trained()[0].replace("\n", "")
    assert squeezed == f"9 = 3 * 3.</think>No.{end}"
    assert rows.before_last_answer() == served(rows.tokenizer, [QUESTION])


def test_whole_and_half_blocks_have_the_same_form(read):
    assert read([ask(WHOLE)], "opens_think").rows == read([ask(ONLY_CLOSED)], "opens_think").rows


@pytest.mark.parametrize("template", ["opens_think", "strips_all_reasoning"])
def test_answer_without_reasoning_gets_an_empty_closed_block_and_a_count(read, template):
    rows = read([ask("No."), ask(WHOLE), ask("No!")], template)
    assert rows.trained()[0].startswith("\n</think>\n\nNo.")
    assert rows.before_last_answer() == served(rows.tokenizer, [QUESTION])
    assert any(warning.startswith("2 rows: answers without reasoning got") for warning in rows.report.warnings)


@pytest.mark.parametrize("template", ["opens_think", "qwen3"])
def test_stripped_reasoning_of_an_earlier_answer_is_neither_seen_nor_trained(read, template):
    turns = [QUESTION, {"role": "assistant", "content": WHOLE}, {"role": "user", "content": "And 7?"}]
    rows = read(
        [{"messages": [*turns, {"role": "assistant", "content": "<think>\nNo divisor.\n</think>\n\nYes."}]}], template
    )
    assert "9 = 3 * 3" not in rows.texts()[0]
    assert len(rows.trained()) == 1
    assert rows.trained()[0].endswith("No divisor.\n</think>\n\nYes.<|im_end|>")
    assert rows.before_last_answer() == served(rows.tokenizer, turns)
    assert any(warning.startswith("1 row: earlier answers are not in the loss") for warning in rows.report.warnings)


def test_qwen3_multi_turn_without_reasoning_trains_every_answer_and_warns_of_the_empty_block(read):
    turns = [QUESTION, {"role": "assistant", "content": "No."}, {"role": "user", "content": "And 7?"}]
    rows = read([{"messages": [*turns, {"role": "assistant", "content": "Yes."}]}], "qwen3")
    assert rows.trained() == ["No.<|im_end|>", "<think>\n\n</think>\n\nYes.<|im_end|>"]
    assert any("empty reasoning block" in warning for warning in rows.report.warnings)


@pytest.mark.parametrize("row", [ask(WHOLE), ask(ONLY_CLOSED), ask("No.", reasoning_content="9 = 3 * 3.")])
def test_qwen3_opens_and_closes_in_the_answer(read, row):
    rows = read([row], "qwen3")
    assert rows.trained() == [WHOLE + "<|im_end|>"]
    assert rows.before_last_answer() == served(rows.tokenizer, [QUESTION])


def test_reasoning_field_under_a_template_that_knows_none_is_written_before_the_answer(read):
    assert read([ask("No.", reasoning_content="9 = 3 * 3.")], "qwen2.5").trained() == [WHOLE + "<|im_end|>"]


@pytest.mark.parametrize("template", ["opens_think", "qwen3"])
def test_reasoning_that_never_closes_is_rejected(read, template):
    rows = read([ask(WHOLE), ask("<think>\n9 = 3 *")], template)
    assert len(rows.rows) == 1
    assert rows.rejected() == {"reasoning that is opened and never closed (a cut answer?)": (2,)}


def test_text_about_tags_is_left_alone_by_templates_without_reasoning(read):
    assert read([ask("Close it with </think>.")], "qwen2.5").trained() == ["Close it with </think>.<|im_end|>"]
