"""What a store looks like on disk: names, columns, limits, and the errors of the file system as sentences.

A store of pretokenized Arrow files may hold no data files: its manifest names, under `linked`, the files that it was made of.

IDENTITY/
  data-00000.arrow ...     Arrow IPC files, uncompressed: input_ids, loss_weights, file, row, line
  lengths.npy              int32, tokens of each example
  trained_tokens.npy       int32, positions with weight, the first one never counted
  loss_weight_sums.npy     float64, over the same positions
  rows.npy                 int64, which rows of linked files the examples are; only where some are left out
  manifest.json            counts, skips, identity and its parts, sources, files with sizes and digests; written last
  prepare.json             when, where and how it was made: nothing that readers of the data need
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from arrowtune.errors import StoreError

STORE_VERSION = 1
MANIFEST = "manifest.json"
HISTORY = "prepare.json"

BATCH_BYTES = 64 << 20
"""No record batch is larger, unless a single example is."""
FILE_BYTES = 512 << 20
"""A file ends with the batch that reaches this."""

SELECTION = "rows"
"""The name of an optional array: int64, which rows of the files that a store is linked to its examples are."""

ARRAYS: dict[str, np.dtype[Any]] = {
    "lengths": np.dtype(np.int32),
    "trained_tokens": np.dtype(np.int32),
    "loss_weight_sums": np.dtype(np.float64),
}


def schema(fractional: bool) -> pa.Schema:
    """The columns. `file` indexes the manifest's sources; `line` is 0 where rows have no lines."""
    weight = pa.float32() if fractional else pa.uint8()
    return pa.schema(
        [
            pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
            pa.field("loss_weights", pa.list_(pa.field("item", weight, nullable=False)), nullable=False),
            pa.field("file", pa.int32(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
            pa.field("line", pa.int64(), nullable=False),
        ]
    )


class FolderGone(StoreError):
    """A folder of the cache was removed while it was written to: another process finished the same work first, or cleaned up."""


_GONE = (errno.ENOENT, errno.ESTALE)

_DISK = {
    errno.ENOSPC: ("has no space left", "free some space, or choose another data.cache_dir; what is finished is kept"),
    errno.EDQUOT: ("is over its quota", "free some space, or choose another data.cache_dir; what is finished is kept"),
    errno.EROFS: ("is read-only", "choose a data.cache_dir that can be written"),
    errno.EACCES: ("cannot be written: permission denied", "choose a data.cache_dir that can be written"),
    errno.EPERM: ("cannot be written: not permitted", "choose a data.cache_dir that can be written"),
    errno.ENOTDIR: ("cannot be made: a part of the path is a file", "choose another data.cache_dir"),
    errno.EEXIST: ("cannot be made: a file is in its place", "choose another data.cache_dir"),
}


def disk_error(error: OSError, folder: Path) -> StoreError:
    """What the file system refused, as one sentence with the place and what to do."""
    if error.errno in _GONE:
        return FolderGone(f"a part of the cache folder {folder} was removed while it was in use", hint="run the command again")
    what, hint = _DISK.get(error.errno or 0, (f"cannot be written: {error.strerror or error}", "check the disk"))
    return StoreError(f"the cache folder {folder} {what}", hint=hint)
