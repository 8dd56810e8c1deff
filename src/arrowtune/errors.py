"""Every exception arrowtune raises on purpose, and the exit code each becomes.

ArrowtuneError                 str() is one sentence with the place; .hint says what to do
  ConfigError             2    the run file or the command line; may hold several problems at once
    MissingExtra          2    an optional package is needed
    RunLocked             2    another process is writing the run folder
  DataError               3
    SourceError           3    a file or folder that cannot be read
    FormatError           3    a row that is not of its format
    RenderError           3    a template that fails, or spans that cannot be proved
    EmptyDataset          3    nothing left to train on
    StoreError            3    a store that is missing, torn or of another version
    PlanError             3    examples that cannot be laid out as asked
  BackendError            4
    NonFiniteLoss         4    the loss or gradient is NaN or infinite
    WorkerLost            4    a rank or a worker died
  CheckpointError         5
  ExportError             6
  Interrupted         128+n    signal n ended the run, all saved that was there to save: 130 for SIGINT, 143 for SIGTERM
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ArrowtuneError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: One sentence: what happened and where.
        hint: One sentence: what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel between processes; keyword arguments do not survive the default pickling.
        return (_rebuild, (type(self), self.args, self.__dict__))

    def render(self) -> str:
        """The message and, on a second line, the hint."""
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


def _rebuild(kind: type[ArrowtuneError], args: tuple[object, ...], state: dict[str, object]) -> ArrowtuneError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a run file: the dotted path of the key, what is wrong, and a remedy."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class ConfigError(ArrowtuneError):
    """The run file or the command line is wrong. `problems` holds every fault that was found."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)

    def render(self) -> str:
        """The message with one line for each problem."""
        lines = [self.message, *(f"  {problem}" for problem in self.problems)]
        return "\n".join([*lines, f"  hint: {self.hint}"] if self.hint else lines)


class MissingExtra(ConfigError):
    """An optional package is needed: the message names it and the extra that brings it."""


class RunLocked(ConfigError):
    """Another process holds the run folder."""


class DataError(ArrowtuneError):
    """Something about the data; every subclass names the file and, where there is one, the row."""

    exit_code = 3


class SourceError(DataError):
    """A file, folder or object that cannot be found or read."""


class FormatError(DataError):
    """A row that is not of its format."""


class RenderError(DataError):
    """A chat template that fails, or trained spans that cannot be proved."""


class EmptyDataset(DataError):
    """No row is left; the message counts the skipped rows by reason."""


class StoreError(DataError):
    """A store that is missing, torn, or was written by another version."""


class PlanError(DataError):
    """Examples that cannot be laid out as asked."""


class BackendError(ArrowtuneError):
    """The model or the devices."""

    exit_code = 4


class NonFiniteLoss(BackendError):
    """The loss or the gradient norm is NaN or infinite; the message names the step and its rows."""


class WorkerLost(BackendError):
    """A rank or a worker process died; the message names it and what it was working on."""


class CheckpointError(ArrowtuneError):
    """A checkpoint that is incomplete, or was saved for another plan or model."""

    exit_code = 5


class ExportError(ArrowtuneError):
    """A model folder that cannot be written or does not reload."""

    exit_code = 6


class Interrupted(ArrowtuneError):
    """A signal ended the run; the message says where it can be continued.

    Args:
        signum: The signal.
        message: One sentence, with the checkpoint that was saved.
    """

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum
        self.exit_code = 128 + signum
