"""What people see: tables that align, text that hides nothing, trained tokens that stand out."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from arrowtune.types import EvalStats, Origin, Progress, Skip
from arrowtune.view.check import check_text
from arrowtune.view.prepared import prepared_text
from arrowtune.view.preview import PreviewedRow, row_text, skip_text
from arrowtune.view.text import duration, fields, table, visible
from arrowtune.view.trained import evaluated_text, trained_json, trained_text

STORE = {
    "name": "chats",
    "role": "train",
    "path": "/cache/stores/ab12",
    "identity": "ab12",
    "rows_read": 1000,
    "rows": 990,
    "skipped": {"no_assistant_turn": 9, "bad_row": 1},
    "tokens": 123456,
    "trained_tokens": 45678,
    "reused": False,
    "seconds": 3.21,
    "tokens_per_second": 38459.8,
}
WARM = {
    **STORE,
    "name": "holdout",
    "role": "eval",
    "skipped": {},
    "rows_read": 10,
    "rows": 10,
    "reused": True,
    "path": "/cache/cd",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ünïcode, 日本語 and 😀", "plain text, ünïcode, 日本語 and 😀"),
        ("line\n\ttab", "line\n\ttab"),
        ("\x1b[31mred\x1b[0m\a", "␛[31mred␛[0m␇"),
        ("a\u202eb", "a<U+202E>b"),
        ("pay\u200dpal", "pay<U+200D>pal"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("a\u00a0b\r\n", "a<U+00A0>b␍\n"),
    ],
)
def test_hidden_characters_are_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(("seconds", "told"), [(0.04, "0.0 s"), (48.4, "48 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_tables_align_text_left_and_numbers_right() -> None:
    assert table(("name", "n"), [("a", "1"), ("long name", "1,000")]) == "name           n\na              1\nlong name  1,000"
    assert fields([("a", "1"), ("bcd", "2")], indent="  ") == "  a    1\n  bcd  2"


def test_prepare_shows_rows_tokens_speed_skips_by_reason_and_places() -> None:
    assert prepared_text([STORE, WARM]).splitlines() == [
        "source   role   rows read  used  skipped   tokens  trained tokens  tokens/s",
        "chats    train      1,000   990       10  123,456          45,678    38,460",
        "holdout  eval          10    10        0  123,456          45,678    reused",
        "",
        "skipped",
        "  chats: 9 rows: the conversation has no assistant turn to learn from (no_assistant_turn)",
        "  chats: 1 row: the row is not of its format (bad_row)",
        "",
        "stores",
        "  chats    /cache/stores/ab12  (made in 3.2 s)",
        "  holdout  /cache/cd  (reused)",
    ]


@dataclass(frozen=True)
class Result:
    """As `TrainResult`."""

    progress: Progress
    started_at: int
    total_steps: int
    first_loss: float | None = None
    last_loss: float | None = None
    evals: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    checkpoint: Path | None = None
    export: Path | None = None
    tokens_per_second: float = 0.0
    idle: bool = False


def test_training_ends_with_what_changed_and_where_it_is() -> None:
    result = Result(
        Progress(12, 34567, 8910),
        started_at=7,
        total_steps=12,
        first_loss=4.21,
        last_loss=1.5,
        evals={"holdout": [(0, 4.5), (12, 1.75)], "other": [(12, 2.0)]},
        checkpoint=Path("runs/x/checkpoints/step-00000012"),
        export=Path("runs/x/export"),
        tokens_per_second=1234.4,
    )
    assert trained_text(result).splitlines() == [
        "steps         12 of 12, continued from 7",
        "loss          4.2100 -> 1.5000",
        "eval holdout  4.5000 after step 0 -> 1.7500 after step 12",
        "eval other    2.0000 after step 12",
        "tokens        34,567, of which 8,910 trained",
        "speed         1,234 tokens/s",
        "checkpoint    runs/x/checkpoints/step-00000012",
        "export        runs/x/export",
    ]
    assert trained_json(result)["evals"] == {
        "holdout": [{"step": 0, "loss": 4.5}, {"step": 12, "loss": 1.75}],
        "other": [{"step": 12, "loss": 2.0}],
    }


def test_a_finished_run_says_so_and_an_early_stop_says_how_to_go_on() -> None:
    idle = trained_text(Result(Progress(12, 1, 1), 12, 12, idle=True))
    assert "12 of 12: everything the run asks for was done already, nothing was changed" in idle
    assert "7 of 12; the same command continues" in trained_text(Result(Progress(7, 1, 1), 0, 12))


def test_evaluation_is_a_table() -> None:
    assert evaluated_text([EvalStats("holdout", 12, 1.0, 4567, 0.1)]).splitlines() == [
        "set        loss  perplexity  trained tokens",
        "holdout  1.0000        2.72           4,567",
    ]


def test_check_shows_sources_plan_reasons_and_warnings() -> None:
    source = {key: STORE[key] for key in ("name", "role", "rows_read", "rows", "skipped", "tokens", "trained_tokens")}
    plan = {
        "steps": 31,
        "examples": 990,
        "tokens": 123456,
        "trained_tokens": 45678,
        "packing_efficiency": 0.973,
        "packing_bound": 0.981,
    }
    report = {
        "sources": [source],
        "plan": plan,
        "resolved": {"derived": {"train.steps": {"value": 31, "because": "1 epoch of 31 steps"}}},
        "warnings": ["source chats: 9 rows\x1b have no assistant turn"],
    }
    told = check_text(report)
    assert "  steps     31\n" in told
    assert "97.3 %" in told
    assert "98.1 %" in told
    assert "  train.steps  31  1 epoch of 31 steps" in told
    assert "␛ have" in told
    assert "\x1b" not in told


def row(*runs: tuple[str, float], cut: int = 0) -> PreviewedRow:
    return PreviewedRow("chats", Origin("data/chats.jsonl", 2, 3), runs, tokens=1234, trained_tokens=2, cut=cut)


def on_a_terminal(shown: object) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="standard", soft_wrap=True, highlight=False).print(shown, end="")
    return out.getvalue()


def test_without_colour_trained_tokens_stand_between_marks() -> None:
    shown = row_text(row(("user: hi ", 0), ("4<end>\n", 1), ("\n", 0)), colour=False)
    assert shown.plain == "data/chats.jsonl:3  (chats: 1,234 tokens, 2 trained)\nuser: hi·⟦4<end>↵\n⟧\n"
    assert not shown.spans


def test_with_colour_trained_tokens_are_styled_and_markup_in_data_stays_text() -> None:
    printed = on_a_terminal(row_text(row(("[bold]no[/bold] ", 0), ("[red]yes", 1)), colour=True))
    assert "\x1b[1;32m[red]yes\x1b[0m" in printed
    assert "[bold]no[/bold]" in printed


def test_data_cannot_forge_marks_or_terminal_codes() -> None:
    shown = row_text(row(("⟦forged⟧\x1b[2J", 0), ("real", 1)), colour=False).plain
    assert shown.endswith("<U+27E6>forged<U+27E7>␛[2J⟦real⟧\n")


def test_unusual_weights_and_what_is_cut_off_are_named() -> None:
    shown = row_text(row(("😀", 0.5), cut=1200), colour=False).plain
    assert shown.endswith("⟦0.5*😀⟧\n… 1,200 more characters are beyond data.max_length …\n")


def test_long_context_is_shortened_and_trained_text_never_is() -> None:
    whole = row(("c" * 5000, 0), ("t" * 5000, 1))
    short = row_text(whole, colour=False).plain
    assert short.count("c") < 2000
    assert "3,800 more characters" in short
    assert short.count("t" * 5000) == 1
    assert "c" * 5000 in row_text(whole, colour=False, full=True).plain


def test_skips_say_where_and_why() -> None:
    skips = [Skip(Origin("f.jsonl", 1, 2), "overlong", "900 tokens"), Skip(Origin("f.jsonl", 3), "odd")]
    assert skip_text(skips, {"overlong": "too long"}, colour=False).plain.splitlines() == [
        "f.jsonl:2  overlong: too long; 900 tokens",
        "f.jsonl row 3  odd",
    ]
