"""The sections of the run file that the training loop reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from arrowtune.section import Section

Fraction = Annotated[float, Field(ge=0, le=1)]


class ScheduleConfig(Section):
    """The learning rate over the run."""

    name: Literal["constant", "linear", "cosine"] = "cosine"
    """Shape after the warm-up."""
    warmup: Annotated[float, Field(ge=0)] = 0.03
    """Steps of linear warm-up; below 1 a share of all steps."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """The learning rate at the end of linear and cosine."""


class TrainConfig(Section):
    """How long to train, and the seed of everything random."""

    epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the training examples; 1 when neither this nor `steps` is given."""
    steps: Annotated[int, Field(gt=0)] | None = None
    """Optimizer steps."""
    max_steps: Annotated[int, Field(gt=0)] | None = None
    """Stop early after this step and save; changes neither plan nor schedule."""
    seed: Annotated[int, Field(ge=0)] = 42
    """Seeds the order of the data, random weights and dropout."""

    @model_validator(mode="after")
    def _one_length(self) -> TrainConfig:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        return self


class EvalConfig(Section):
    """When the evaluation sets are measured."""

    every: Annotated[int, Field(ge=0)] = 0
    """Every so many steps; 0 is never in between."""
    at_start: bool = False
    """Before the first step."""
    at_end: bool = True
    """After the last step."""


class CheckpointConfig(Section):
    """When the training state is saved, and where a run continues from."""

    every: Annotated[int, Field(ge=0)] = 0
    """Every so many steps; 0 is never in between."""
    keep: Annotated[int, Field(ge=1)] = 3
    """The newest so many checkpoints stay, and as many of the exports of `export.every`."""
    resume: str = "auto"
    """`auto` continues from the newest complete checkpoint of the run folder, `never` refuses to, a path names one."""
    at_end: bool = True
    """After the last step."""
    allow_new_plan: bool = False
    """Continue a checkpoint although sources, weights, seed or batch have changed: from the step of the new plan before which as
    many tokens were seen. `arrowtune train --allow-new-plan` says so once."""


class ExportConfig(Section):
    """When a model folder is written that `transformers` loads, and how."""

    at_end: bool = True
    """After the last step, to `output_dir/export`."""
    every: Annotated[int, Field(ge=0)] = 0
    """Every so many steps, to `output_dir/export-STEP`; the newest `checkpoint.keep` of them stay."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the written weights; `auto` is the dtype the model came with."""
    merge_lora: bool = True
    """Write whole weights, the adapters of `model.lora` added to them; false writes the adapters alone, as peft loads them."""
