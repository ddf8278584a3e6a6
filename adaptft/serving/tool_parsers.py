"""Which parser of an engine reads the tool calls that a chat template teaches."""

from __future__ import annotations

# what the template writes around a call -> vLLM's parser (0.32, ``vllm/tool_parsers``); the first found counts
_PARSERS: tuple[tuple[str, str], ...] = (
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name and its value', "llama3_json"),
)
SGLANG_PARSERS = {
    "qwen3_coder": "qwen3_coder",
    "hermes": "qwen25",
    "kimi_k2": "kimi_k2",
    "deepseek_v3": "deepseekv3",
    "mistral": "mistral",
    "llama3_json": "llama3",
}
"""SGLang's names for the same formats (0.5, ``function_call_parser.py``)."""


def tool_parser(template: str | None) -> str | None:
    """vLLM's name of the parser for ``template``; None where it renders no tools, or in a form that is not known."""
    if not template or "tools" not in template:
        return None
    return next((parser for marker, parser in _PARSERS if marker in template), None)
