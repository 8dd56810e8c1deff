"""The `model`, `optimizer` and `strategy` sections of the run file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from arrowtune.section import Section


class LoraConfig(Section):
    """Low-rank adapters (Hu et al., 2021) that are trained in place of the weights. Needs `arrowtune[lora]`."""

    rank: Annotated[int, Field(ge=1)] = 16
    """Rows of the small matrices."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The change of a matrix is scaled by `alpha / rank`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of what enters the adapters."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = "all-linear"
    """Names of layers, such as `[q_proj, v_proj]`; `all-linear` is every linear layer but the output layer."""


class ModelConfig(Section):
    """The model that is trained."""

    path: str = "tiny"
    """A local folder, a hub id, or `tiny`: a small decoder that ships with the package."""
    gguf_file: str | None = None
    """The `.gguf` file within `path` that holds the weights and the tokenizer."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the trained weights; `auto` is float32."""
    init: Literal["pretrained", "random"] = "pretrained"
    """Load the weights, or draw them with `train.seed`. `tiny` has no weights and is always random."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the model's own configuration, such as `{num_hidden_layers: 4}`."""
    lora: LoraConfig | None = None
    """Train adapters, and leave the weights as they are."""
    trust_remote_code: bool = False
    """Run Python code that the model folder brings. Never implied."""


class OptimizerConfig(Section):
    """The optimizer."""

    name: Literal["adamw"] = "adamw"
    """AdamW with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    lr: Annotated[float, Field(ge=0)] = 1e-5
    """Peak learning rate. 0 leaves the weights bit-equal."""
    betas: Annotated[tuple[float, float], Field(strict=False)] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled decay of matrices; vectors (norms, biases) are not decayed."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Clip the whole gradient to this L2 norm; null does not clip."""


class StrategyConfig(Section):
    """How the model is laid out over the devices."""

    name: Literal["fsdp", "reference"] = "fsdp"
    """`fsdp` is FSDP2: parameters, gradients and optimizer state sharded over all ranks. `reference` is a bigram model in
    numpy, to try a run's data, plan and metrics in seconds."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of activations and matrix products; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass instead of keeping its activations."""

    def computes_in(self, gpu: bool) -> tuple[str, str]:
        """The dtype of activations and matrix products on a GPU or a CPU, and why."""
        if self.compute_dtype != "auto":
            return self.compute_dtype, "as written"
        return ("bfloat16", "a GPU") if gpu else ("float32", "a CPU computes bfloat16 slowly")
