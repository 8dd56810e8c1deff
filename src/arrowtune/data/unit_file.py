"""The file of a finished unit: its examples and its tally, named by content, whole or absent."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from arrowtune.data.render import Encoded
from arrowtune.data.report import Tally
from arrowtune.data.store_batch import Places, make_batch
from arrowtune.data.store_format import disk_error, schema
from arrowtune.data.units import Unit
from arrowtune.protocols import Tokens

_TALLY = b"tally"

_MAGIC = b"ARROW1"
"""What an Arrow file ends with, and begins with, padded to 8 bytes; the message that is its schema follows."""

_SCHEMA_AT = 8


def unit_file(folder: Path, unit: Unit) -> Path:
    """Where a unit's examples are kept: named by content, so that whoever cuts the same content finds them."""
    return folder / f"{unit.key}.arrow"


def read_tally(folder: Path, unit: Unit) -> Tally | None:
    """What is known of a finished unit; None where there is none."""
    try:
        with open(unit_file(folder, unit), "rb") as file:
            # Opening it with Arrow's reader would start Arrow's threads, and a host that has them may not fork.
            file.seek(-len(_MAGIC), os.SEEK_END)
            if file.read() != _MAGIC:
                return None
            file.seek(_SCHEMA_AT)
            found = pa.ipc.read_schema(pa.PythonFile(file, "r"))
        return Tally.from_json(json.loads(found.metadata[_TALLY]))
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None


def write_unit(folder: Path, unit: Unit, encoded: Encoded, places: Sequence[tuple[int, int, int]], tally: Tally) -> None:
    """Publish a unit's file, which survives a power cut.

    Args:
        folder: Of all units.
        unit: The unit.
        encoded: Its examples.
        places: Of every row that was given to the encoder: piece, row, line.
        tally: What became of its rows.

    Raises:
        StoreError: The disk refuses.
    """
    kept = np.array([places[row] for row in encoded.kept.tolist()], np.int64).reshape(-1, 3)
    tokens = Tokens(encoded.input_ids, encoded.loss_weights, encoded.offsets)
    where = Places(kept[:, 0].astype(np.int32), kept[:, 1].copy(), kept[:, 2].copy())
    _write(unit_file(folder, unit), make_batch(tokens, where, schema(tally.fractional)), tally)


def _write(path: Path, batch: pa.RecordBatch, tally: Tally) -> None:
    # Process ids are not unique where two machines write.
    temporary = path.with_name(f".tmp-{secrets.token_hex(8)}-{path.name}")
    kind = batch.schema.with_metadata({_TALLY: json.dumps(tally.to_json()).encode()})
    try:
        with open(temporary, "wb") as file:
            with pa.ipc.new_file(file, kind) as writer:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=kind))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(error, path.parent.parent.parent) from None
