"""What `check` found, for people: the sources, the plan, every derived number with its reason, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arrowtune.view.prepared import skipped_lines
from arrowtune.view.text import count, fields, percent, table, visible


def check_text(report: Mapping[str, Any]) -> str:
    """The report as aligned text.

    Args:
        report: The object that `check --json` prints.
    """
    parts = [_sources(report), _plan(report), _resolved(report["resolved"])]
    if warnings := report["warnings"]:
        parts.append("\n".join(["warnings", *(f"  {visible(str(warning))}" for warning in warnings)]))
    return "\n\n".join(part for part in parts if part)


def _sources(report: Mapping[str, Any]) -> str:
    head = ("source", "role", "rows", "used", "skipped", "tokens", "trained tokens")
    rows = [_source(source) for source in report["sources"]]
    skipped = [line for source in report["sources"] for line in skipped_lines(source["name"], source.get("skipped", {}))]
    parts = [table(head, rows, left=2)]
    if skipped:
        parts.append("\n".join(["skipped", *skipped]))
    return "\n\n".join(parts)


def _source(source: Mapping[str, Any]) -> tuple[str, ...]:
    about = "~" if source.get("estimated") else ""
    numbers = (
        source["rows_read"],
        source["rows"],
        sum(source.get("skipped", {}).values()),
        source["tokens"],
        source["trained_tokens"],
    )
    return (visible(source["name"]), source["role"], *(about + count(number) for number in numbers))


def _plan(report: Mapping[str, Any]) -> str:
    plan = report["plan"]
    about = " (estimated from the first rows: run prepare for the exact plan)" if report.get("estimated") else ""
    pairs = [
        ("steps", count(plan["steps"])),
        ("examples", count(plan["examples"])),
        ("tokens", f"{count(plan['tokens'])}, of which {count(plan['trained_tokens'])} trained"),
        (
            "packing",
            f"{percent(plan['packing_efficiency'])} of every row is tokens; {percent(plan['packing_bound'])} is possible",
        ),
    ]
    return f"plan{about}\n{fields(pairs, indent='  ')}"


def _resolved(resolved: Mapping[str, Any]) -> str:
    derived = resolved.get("derived", resolved)
    lines = [(key, str(item["value"]), str(item["because"])) for key, item in derived.items()]
    widths = [max((len(line[column]) for line in lines), default=0) for column in (0, 1)]
    return "\n".join(["resolved", *(f"  {k.ljust(widths[0])}  {v.ljust(widths[1])}  {why}".rstrip() for k, v, why in lines)])
