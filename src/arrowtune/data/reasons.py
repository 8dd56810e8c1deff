"""Why rows are not used: the code that manifests count by, and the sentence that people read."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "bad_row": "the row is not of its format",
    "empty": "the row holds no text",
    "no_assistant_turn": "the conversation has no assistant turn to learn from",
    "no_trained_tokens": "every turn is context: nothing is left to train",
    "truncated_away": "nothing to train is left within max_length",
    "overlong": "the row is longer than max_length",
    "trailing_messages": "messages follow the last assistant turn",
    "template_error": "the chat template refused the conversation",
    "spans_unproved": "the template does not show where the assistant turns begin and end",
    "no_end_of_turn": "the template ends a trained turn without an end-of-turn token",
    "tool_calls_ignored": "the chat template does not write tool calls",
    "reasoning_unproved": "the template does not show where the reasoning of a trained turn begins and ends",
    "control_text": "the content spells control tokens",
    "control_text_unproved": "the content spells control tokens, and they could not be kept apart from the template's own",
}

COUNTS: Mapping[str, tuple[str, str]] = {
    "truncated": ("row", "cut to max_length"),
    "split": ("document", "split into pieces of at most max_length"),
    "trimmed": ("row", "with messages after the last assistant turn, left out"),
    "rows_with_control_text": ("row", "with control tokens spelled in their content"),
    "reasoning_ignored": ("row", "with reasoning that the template does not write"),
    "invalid_tool_arguments": ("tool call", "with arguments that are no JSON"),
    "repaired_text": ("row", "with lone surrogates, replaced by U+FFFD"),
    "open_ended": ("row", "with a trained turn that the template leaves without an end-of-turn token"),
    "straddling": ("token", "across the start of a trained turn, left as context"),
}
"""What is worth telling of rows that are used."""


def told(counts: Mapping[str, int]) -> str:
    """One clause for what rows that are used met with; empty where there is nothing to tell."""
    found = ((counts.get(name, 0), what, text) for name, (what, text) in COUNTS.items())
    return ", ".join(f"{count:,} {what}{'s' * (count != 1)} {text}" for count, what, text in found if count)


def explain(reason: str) -> str:
    """The sentence for a reason code; the code itself where it is not known."""
    return REASONS.get(reason, reason)
