"""Sources: which files a data set consists of, how they are cut into pieces, and how pieces become rows."""

from arrowtune.data.sources.local import Source, SourceFile, resolve_source
from arrowtune.data.sources.piece import PIECE_BYTES, Piece, RawRow
from arrowtune.data.sources.readers import FileCut, head, parse
from arrowtune.data.sources.table import read_table

__all__ = ["PIECE_BYTES", "FileCut", "Piece", "RawRow", "Source", "SourceFile", "head", "parse", "read_table", "resolve_source"]
