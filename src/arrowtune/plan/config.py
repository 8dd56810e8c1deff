"""The `batch` section of the run file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from arrowtune.section import Section


class BatchConfig(Section):
    """What one optimizer step sees, and how it is cut into micro-batches."""

    examples: Annotated[int, Field(ge=1)] | None = None
    """Examples of the global batch, whatever the number of devices; 32 where `tokens` is absent too."""
    tokens: Annotated[int, Field(ge=2)] | None = None
    """Tokens of the global batch at most, in place of `examples`: each batch takes examples while they fit, and the batches of
    65,536 examples are evened out."""
    micro_tokens: Annotated[int, Field(ge=2)] | None = None
    """Token capacity of one packed micro-batch row; `data.max_length` when absent. Changes memory, never the result."""
    packing: Literal["best_fit", "first_fit", "none"] = "best_fit"
    """How the examples of a step share micro-batch rows."""

    @model_validator(mode="after")
    def _one_size(self) -> BatchConfig:
        if self.examples is not None and self.tokens is not None:
            raise ValueError("give examples or tokens, not both")
        return self

    @property
    def size(self) -> int:
        """Examples of the global batch where tokens do not say."""
        return 32 if self.examples is None else self.examples
