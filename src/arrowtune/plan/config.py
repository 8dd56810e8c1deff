"""The `batch` section of the run file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from arrowtune.section import Section


class BatchConfig(Section):
    """What one optimizer step sees, and how it is cut into micro-batches."""

    examples: Annotated[int, Field(ge=1)] = 32
    """Examples of the global batch, whatever the number of devices."""
    micro_tokens: Annotated[int, Field(ge=2)] | None = None
    """Token capacity of one packed micro-batch row; `data.max_length` when absent. Changes memory, never the result."""
    packing: Literal["best_fit", "first_fit", "none"] = "best_fit"
    """How the examples of a step share micro-batch rows."""
