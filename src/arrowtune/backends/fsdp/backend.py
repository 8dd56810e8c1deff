"""The FSDP2 backend: one rank's model and optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.backends.fsdp.adapters import add_adapters, has_adapters
from arrowtune.backends.fsdp.attention import use_documents
from arrowtune.backends.fsdp.export import export_adapters, export_dtype, export_weights
from arrowtune.backends.fsdp.flops import Flops, peak_flops
from arrowtune.backends.fsdp.model import DTYPES, first_run, load_model
from arrowtune.backends.fsdp.objective import Objective
from arrowtune.backends.fsdp.optimizer import build_optimizer, clip, grad_norm, update
from arrowtune.backends.fsdp.probe import attention_differs, documents_leak, fused_loss_differs
from arrowtune.backends.fsdp.shard import reshard, shard
from arrowtune.backends.fsdp.state import load_state, save_state
from arrowtune.backends.fsdp.world import World
from arrowtune.errors import BackendError, NonFiniteLoss
from arrowtune.protocols import StepResult
from arrowtune.types import Batch

_OWN_ATTENTION = "the model's attention is not plain causal attention; its own computes every row whole, which takes longer"
_NOT_FUSED = "the model's loss is not what its architecture says; its own forward makes the logits, which takes more memory"


class FSDPBackend:
    """Implements `protocols.Backend`. Make it with `open`.

    Attributes:
        rank, world_size: This rank among all.
        why_not_packed: Empty where documents may share a row; else why not.
        notes: What else the user should know of how the model is computed.
        model_config: The configuration of the model, plain values.
        objective: The model and its loss, the root of the sharded units.
        model: The sharded `transformers` model, for those who want to look inside; to run it, ask for `logits`.
        peak_flops: Of one device, a second; 0 where it is not known.
        optimizer: AdamW over this rank's shards.
    """

    def __init__(
        self,
        world: World,
        objective: Objective,
        optimizer: OptimizerConfig,
        *,
        stored: torch.dtype,
        leaks: bool,
        notes: Sequence[str],
    ) -> None:
        self.rank, self.world_size = world.rank, world.size
        self.objective = objective
        self.model: PreTrainedModel = objective.model
        model = self.model
        self.model_config: Mapping[str, Any] = model.config.to_dict()
        self.optimizer = build_optimizer(model, optimizer)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._max_grad_norm = optimizer.max_grad_norm
        self._world = world
        self._stored_dtype = stored
        self._vocabulary = _vocabulary_of(model)
        self.notes = notes
        self.peak_flops = peak_flops(world.device)
        self._flops = Flops(model)
        self.why_not_packed = ""
        if leaks:
            kind = type(model.config).__name__.removesuffix("Config")
            self.why_not_packed = f"{kind} lets documents that share a row see each other"

    @classmethod
    def open(cls, model: ModelConfig, strategy: StrategyConfig, optimizer: OptimizerConfig, *, seed: int) -> FSDPBackend:
        """Join the ranks, load the model, shard it.

        Raises:
            ConfigError: There is no such model.
            BackendError: It cannot be loaded, or does not fit.
        """
        world = World.open()
        try:
            with _memory_errors_explained():
                loaded = load_model(model, seed=seed)
                if model.lora is not None:
                    add_adapters(loaded.model, model.lora, seed=seed)
                torch.manual_seed(seed + world.rank)  # Dropout differs between ranks, and from the draw of the weights.
                compute = DTYPES[strategy.computes_in(world.device.type == "cuda")[0]]
                objective = Objective(loaded.model.train(), world.device)
                shard(objective, compute, world, recompute=strategy.activation_checkpointing)
                with first_run(model):
                    leaks, notes = _tried(objective, compute, world)
                reshard(objective)
                return cls(world, objective, optimizer, stored=loaded.stored_dtype, leaks=leaks, notes=notes)
        except BaseException:
            world.close()
            raise

    def train_step(self, batches: Sequence[Batch], *, loss_weight: float, lr: float) -> StepResult:
        """See `protocols.Backend.train_step`.

        Raises:
            NonFiniteLoss: The loss or the gradient is NaN or infinite; the weights are as they were.
            BackendError: A token is beyond the model's vocabulary, or the device is out of memory.
        """
        self.objective.train()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._world.device)
        with _memory_errors_explained():
            for batch in batches:
                loss = self._loss_sum(batch)
                (loss / loss_weight).backward()
                loss_sum += loss.detach()
        norm = grad_norm(self._parameters)
        needed = torch.tensor(self._flops.of(batches), dtype=torch.float64, device=self._world.device)
        total, flops = self._world.sum(loss_sum, needed)
        result = StepResult(total, float(norm), flops)
        self._check_finite(result)
        clip(self._parameters, norm, self._max_grad_norm)
        update(self.optimizer, lr)
        return result

    @torch.no_grad()
    def eval_loss(self, batches: Iterable[Batch]) -> float:
        """See `protocols.Backend.eval_loss`."""
        self.objective.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._world.device)
        for batch in batches:
            loss_sum += self._loss_sum(batch)
        reshard(self.objective)
        (total,) = self._world.sum(loss_sum)
        return total

    @torch.no_grad()
    def logits(self, batch: Batch) -> torch.Tensor:
        """The model's logits at every position of a batch, [positions, vocabulary], without dropout. Every rank calls it."""
        self.objective.eval()
        logits: torch.Tensor = self.objective(batch, logits=True)
        reshard(self.objective)
        return logits

    def save(self, folder: Path) -> list[Path]:
        """See `protocols.Backend.save`."""
        return save_state(folder, self.model, self.optimizer, self._world)

    def load(self, folder: Path) -> None:
        """See `protocols.Backend.load`."""
        load_state(folder, self.model, self.optimizer, self._world)

    def export(self, folder: Path, dtype: str, *, merge_lora: bool = True) -> None:
        """See `protocols.Backend.export`."""
        written = export_dtype(dtype, self._stored_dtype)
        if has_adapters(self.model) and not merge_lora:
            export_adapters(folder, self.model, written, self._world)
        else:
            export_weights(folder, self.model, written, self._world)

    def gather(self, value: Any) -> list[Any]:
        """See `protocols.Backend.gather`."""
        return self._world.gather(value)

    def close(self) -> None:
        """Leave the process group."""
        self._world.close()

    def _loss_sum(self, batch: Batch) -> torch.Tensor:
        highest = int(batch.input_ids.max())
        if highest >= self._vocabulary:
            raise BackendError(
                f"token {highest} of the data is beyond the model's vocabulary of {self._vocabulary}",
                hint="use the tokenizer that belongs to the model",
            )
        loss: torch.Tensor = self.objective(batch)
        return loss

    def _check_finite(self, result: StepResult) -> None:
        if math.isfinite(result.loss_sum) and math.isfinite(result.grad_norm):
            return
        self.optimizer.zero_grad()
        raise NonFiniteLoss(
            f"the loss sum is {result.loss_sum} and the gradient norm {result.grad_norm}",
            hint="a lower optimizer.lr, a longer schedule.warmup, or compute_dtype: float32 usually helps",
        )


def _tried(objective: Objective, compute: torch.dtype, world: World) -> tuple[bool, list[str]]:
    """Let the model compute as we would have it, hold it against its own way, and go back to that where they differ.

    Returns:
        Whether documents that share a row see each other, and what the user should know.
    """
    vocabulary, notes = _vocabulary_of(objective.model), []
    own = objective.model.config._attn_implementation
    if use_documents(objective.model) and any(world.gather(attention_differs(objective, vocabulary, compute))):
        objective.model.set_attn_implementation(own)
        notes.append(_OWN_ATTENTION)
    if any(world.gather(fused_loss_differs(objective, vocabulary, compute))):
        objective.fused = None
        notes.append(_NOT_FUSED)
    return any(world.gather(documents_leak(objective, vocabulary, compute))), notes


def _vocabulary_of(model: PreTrainedModel) -> int:
    """Rows of the input embedding, over all ranks."""
    rows: int = next(model.get_input_embeddings().parameters()).shape[0]
    return rows


@contextmanager
def _memory_errors_explained() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". ")[0]
        hint = "lower batch.micro_tokens, set strategy.activation_checkpointing: true, or use more devices"
        raise BackendError(f"the device ran out of memory: {reason}", hint=hint) from error
