"""The command line: each verb a thin function, its heavy imports inside; results on stdout, everything else on stderr."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from arrowtune.errors import ArrowtuneError, Interrupted
from arrowtune.view.output import print_result, results

if TYPE_CHECKING:
    from arrowtune.config import SFTConfig

RunFile = Annotated[Path, typer.Argument(metavar="RUN", help="The run file (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Override keys of the run file: batch.examples=64", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
_CHECKPOINT = "A checkpoint folder: runs/NAME/checkpoints/step-00000100"
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(help="Of the written weights; auto is what the model came with."),
]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Supervised fine-tuning of language models: exact loss masks, Arrow from tokenisation to device, exact resume.",
    epilog="Exit codes: 0 done, 2 config, 3 data, 4 backend, 5 checkpoint, 6 export, 130 and 143 stopped by a signal.",
)


def main() -> NoReturn:
    """The `arrowtune` command."""
    sys.exit(run())


def run() -> int:
    """Run the command of `sys.argv` and turn whatever it raises into an exit code and a sentence."""
    # Nothing here multiplies matrices with numpy; its threads would cost more than the rest of its import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with _signals():
            app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except _Stopped as end:
        _say(f"stopped by {signal.Signals(end.signum).name}; what was finished is kept, and the same command continues")
        return 128 + end.signum
    except ArrowtuneError as error:
        return _explain(error)
    except OSError as error:
        return _explain_os(error)
    except Exception:  # noqa: BLE001 - the last line of defence
        _say("error: this is a bug in arrowtune or a package it uses; please report it with the traceback below")
        traceback.print_exc()
        return 1
    return 0


# ---------------------------------------------------------------------- verbs


def _verb(function: Callable[..., Any], parent: typer.Typer | None = None) -> Callable[..., None]:
    """Print what the function returns to stdout: a text, an object as JSON, or what prints itself to a rich console.

    Whatever is printed meanwhile goes to stderr.
    """

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> None:
        with results() as out:
            result = function(*args, **kwargs)
            if os.environ.get("RANK", "0") == "0":  # Under torchrun one process speaks for all.
                print_result(result, out)

    (parent or app).command(function.__name__.rpartition("_")[2])(command)
    return command


@_verb
def train(
    run: RunFile,
    overrides: Overrides = None,
    allow_new_plan: Annotated[
        bool,
        typer.Option("--allow-new-plan", help="Continue although sources, weights, seed or batch of the run have changed."),
    ] = False,
    as_json: Json = False,
) -> Any:
    """Prepare what is missing, then train. Continues a run that has a checkpoint."""
    if allow_new_plan:
        overrides = [*(overrides or ()), "checkpoint.allow_new_plan=true"]
    from arrowtune import api
    from arrowtune.data.progress import Bars
    from arrowtune.view.trained import trained_json, trained_text

    with Bars() as progress:
        result = api.train(_load(run, overrides), progress=progress)
    return trained_json(result) if as_json else trained_text(result)


@_verb
def prepare(
    run: RunFile,
    overrides: Overrides = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Prepare nothing; say which stores are there, and what differs where one is not.")
    ] = False,
    as_json: Json = False,
) -> Any:
    """Tokenise the data into the store and stop."""
    if explain:
        from arrowtune.ingest import explain as explain_run
        from arrowtune.view.explained import explained_text

        sources = [source.to_json() for source in explain_run(_load(run, overrides))]
        return {"sources": sources} if as_json else explained_text(sources)
    config = _load(run, overrides, prepares=True)
    from arrowtune import api
    from arrowtune.data.progress import Bars
    from arrowtune.view.prepared import prepared_text

    with Bars() as progress:
        stores = [store.to_json() for store in api.prepare(config, progress=progress)]
    return {"stores": stores} if as_json else prepared_text(stores)


@_verb
def check(run: RunFile, overrides: Overrides = None, as_json: Json = False) -> Any:
    """Validate the run and show its plan, without a device."""
    from arrowtune import api
    from arrowtune.view.check import check_text

    report = api.check(_load(run, overrides)).to_json()
    return report if as_json else check_text(report)


@_verb
def show(
    run: RunFile,
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of every source to show.")] = 3,
    skipped: Annotated[bool, typer.Option("--skipped", help="Show only the rows that are not used, and why.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show long stretches of context whole.")] = False,
) -> Any:
    """Show rows as they will be trained: trained tokens in colour, or between marks."""
    from arrowtune.view.show import shown

    return shown(_load(run, overrides), rows=rows, skipped=skipped, full=full)


@_verb
def eval(
    run: RunFile,
    checkpoint: Annotated[Path, typer.Option(metavar="DIR", help=_CHECKPOINT)],
    overrides: Overrides = None,
    as_json: Json = False,
) -> Any:
    """Measure a checkpoint on every evaluation set of the run."""
    from arrowtune import api
    from arrowtune.data.progress import Bars
    from arrowtune.view.trained import evaluated_json, evaluated_text

    with Bars() as progress:
        evals = api.evaluate(_load(run, overrides), checkpoint, progress=progress)
    return evaluated_json(evals) if as_json else evaluated_text(evals)


@_verb
def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help=_CHECKPOINT)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The model folder to write.")],
    dtype: Dtype = "auto",
    merge_lora: Annotated[bool, typer.Option("--merge-lora/--adapters-only", help="Of a run with model.lora.")] = True,
    as_json: Json = False,
) -> Any:
    """Write the model of a checkpoint as a folder that transformers loads."""
    from arrowtune import api

    folder = api.export(checkpoint, out, dtype=dtype, merge_lora=merge_lora)
    return {"export": str(folder)} if as_json else str(folder)


CacheDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="As data.cache_dir; else $ARROWTUNE_CACHE, else ~/.cache/arrowtune."),
]
cache_app = typer.Typer(no_args_is_help=True, help="See what prepare keeps, and remove what is not needed any more.")
app.add_typer(cache_app, name="cache")
_cache_verb = functools.partial(_verb, parent=cache_app)


@_cache_verb
def cache_list(cache_dir: CacheDir = None, as_json: Json = False) -> Any:
    """List stores, unfinished ones and converted tokenizers, with size, age and what they were made of."""
    from arrowtune.data.cache import entries
    from arrowtune.data.folder import cache_folder
    from arrowtune.view.cached import cached_json, cached_text

    folder = Path(cache_folder(cache_dir)[0])
    found = entries(folder)
    return cached_json(folder, found) if as_json else cached_text(folder, found)


@_cache_verb
def cache_prune(
    older_than: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Stores and tokenizers not used for so long: 12h, 30d, 2w."),
    ] = None,
    keep: Annotated[int | None, typer.Option(metavar="N", min=0, help="All stores of a source but the N used last.")] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Units of stores that were never finished.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would be.")] = False,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> Any:
    """Remove stores by age and number, torn and superseded ones, and what killed processes left; never what is in use."""
    from arrowtune.data.folder import cache_folder
    from arrowtune.data.prune import Wish, prune, seconds_of
    from arrowtune.view.cached import pruned_json, pruned_text

    wish = Wish(None if older_than is None else seconds_of(older_than), keep, unfinished)
    pruned = prune(Path(cache_folder(cache_dir)[0]), wish, dry_run=dry_run)
    return pruned_json(pruned, dry_run) if as_json else pruned_text(pruned, dry_run)


def _version(wanted: bool) -> None:
    if wanted:
        from arrowtune import __version__

        print(f"arrowtune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _load(run: Path, overrides: list[str] | None, *, prepares: bool = False) -> SFTConfig:
    from arrowtune.runfile import read_tree

    tree = read_tree(run, overrides or ())
    if prepares:  # What takes long begins while the rest of arrowtune is imported.
        from arrowtune.data.ahead import start_host

        start_host(tree)
    from arrowtune.config import SFTConfig

    return SFTConfig.parse(tree, where=str(run))


# ---------------------------------------------------------------------- ends


class _Stopped(BaseException):
    """A signal outside the training loop, which has its own way to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGINT unwind the program like an exception, so that files, locks and workers are let go of."""

    def stop(signum: int, frame: FrameType | None) -> None:
        for again in (signal.SIGTERM, signal.SIGINT):
            signal.signal(again, signal.SIG_DFL)
        raise _Stopped(signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, stop)
    yield


def _say(text: str) -> None:
    # Under torchrun several processes speak at once.
    rank = f"[rank {os.environ['RANK']}] " if "RANK" in os.environ else ""
    print(f"{rank}{text}", file=sys.stderr, flush=True)


def _explain(error: ArrowtuneError) -> int:
    _debug()
    _say(error.render() if isinstance(error, Interrupted) else f"error: {error.render()}")
    return error.exit_code


def _explain_os(error: OSError) -> int:
    """The machine said no where no one expected it to: a full disk, a missing right."""
    _debug()
    place = f": {error.filename}" if error.filename else ""
    _say(f"error: {error.strerror or error}{place}\n  hint: ARROWTUNE_DEBUG=1 shows where this happened")
    return 1


def _debug() -> None:
    if os.environ.get("ARROWTUNE_DEBUG"):
        traceback.print_exc()
