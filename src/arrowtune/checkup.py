"""`check`: a run validated and planned without a device and without its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.backends.sizes import check_length, read_config
from arrowtune.data.prepare import PrepareJob, find_stores
from arrowtune.data.render import RenderSpec
from arrowtune.data.sample import Estimate, estimate_source
from arrowtune.data.store import Store
from arrowtune.errors import EmptyDataset
from arrowtune.ingest import given, jobs_of, render_spec
from arrowtune.plan.report import PlanReport, report
from arrowtune.plan.selection import select
from arrowtune.protocols import Examples
from arrowtune.resolve import Resolved
from arrowtune.settle import build_plan, with_plan


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a run will do.

    Attributes:
        sources: One object for each source: its counts, and whether they are estimated.
        plan: The plan in numbers.
        run: Every derived value with its reason.
        estimated: Whether any source was estimated.
        warnings: Sentences for a person.
    """

    sources: Sequence[Mapping[str, Any]]
    plan: PlanReport
    run: Resolved
    estimated: bool
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """The object that `check --json` prints."""
        return {
            "sources": list(self.sources),
            "plan": {**self.plan.to_json(), "estimated": self.estimated or self.plan.estimated},
            "estimated": self.estimated,
            "resolved": self.run.to_json(),
            "warnings": list(self.warnings),
        }


def check_run(run: Resolved) -> CheckReport:
    """Look at every source and lay out the plan: exactly where stores are there, else from the first rows.

    Raises:
        ConfigError: Examples may be longer than the model's table of positions.
        DataError: A source, its rows or its template.
    """
    longer = check_length(read_config(run.config.model), run.config.data.max_length)
    spec, jobs = render_spec(run), jobs_of(run)
    found = find_stores(jobs, spec, run.config.data, cache=Path(run["data.cache_dir"]))
    examples: list[Examples] = []
    sources: list[dict[str, Any]] = []
    for job, path in zip(jobs, found, strict=True):
        measured: Examples
        measured, about = _from_store(job, path) if path is not None else _from_first_rows(job, spec)
        used = given(measured, job.config) if isinstance(measured, Store) else _given_of(measured, job)
        examples.append(used)
        sources.append({"name": job.name, "role": job.role, **about, **_counted(used)})
    plan = build_plan(run, [source for source, job in zip(examples, jobs, strict=True) if job.role == "train"])
    numbers = report(plan, run["launch.devices_per_node"])
    estimated = any(source["estimated"] for source in sources)
    return CheckReport(
        sources, numbers, with_plan(run, plan), estimated, [*_warnings(sources), *numbers.warnings, *filter(None, [longer])]
    )


def _from_store(job: PrepareJob, path: Path) -> tuple[Store, dict[str, Any]]:
    store = Store(path, name=job.name)
    counts = {"rows_read": store.manifest["rows_read"], "skipped": store.manifest["skipped"]}
    return store, {"path": str(path), "estimated": False, **counts}


def _from_first_rows(job: PrepareJob, spec: RenderSpec) -> tuple[Estimate, dict[str, Any]]:
    estimate = estimate_source(job, spec)
    if not len(estimate):
        reasons = ", ".join(f"{count} {reason}" for reason, count in estimate.skipped.items())
        raise EmptyDataset(
            f"source {job.name!r}: none of the first rows can be trained on ({reasons or 'there are none'})",
            hint="arrowtune show RUN --skipped shows the rows and why",
        )
    counts = {"rows_read": estimate.rows_read, "skipped": estimate.skipped}
    return estimate, {"path": None, "estimated": not estimate.exact, **counts}


def _given_of(estimate: Estimate, job: PrepareJob) -> Examples:
    """As `given`, of what is expected of a source: rows that are skipped are taken to lie evenly."""
    start, stop = job.config.rows.bounds(len(estimate))
    within = None if job.config.rows.whole else np.arange(min(start, stop - 1), stop, dtype=np.int64)
    return select(estimate, job.config.sample, job.config.repeat, within)


def _counted(source: Examples) -> dict[str, Any]:
    return {
        "rows": len(source),
        "tokens": int(source.lengths.sum(dtype="int64")),
        "trained_tokens": int(source.trained_tokens.sum(dtype="int64")),
        "longest": int(source.lengths.max()),
    }


def _warnings(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    shares = {source["name"]: source["trained_tokens"] / source["tokens"] for source in sources}
    return [f"{name}: only {share:.1%} of its tokens are trained" for name, share in shares.items() if share < 0.01]
