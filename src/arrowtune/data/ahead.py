"""Starting the host of workers as soon as the run file was read as plain values, before anything knows what they mean.

The token engine takes more than a second to load, and until then one core has nothing else to do. A guess is enough:
whatever is not as it should be is left to those who read the run file properly, and a host that nobody needs is let go.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from arrowtune.data.folder import cache_folder


def start_host(tree: Mapping[str, Any]) -> None:
    """Start a host for a run that has nothing in its cache yet, where its tokenizer is a file at hand.

    Args:
        tree: The run file, unchecked.
    """
    data, tokenizer, model = (_section(tree, name) for name in ("data", "tokenizer", "model"))
    path = os.path.join(os.path.expanduser(str(tokenizer.get("path") or model.get("path") or "")), "tokenizer.json")
    if data.get("workers") == 1 or tokenizer.get("fast") is False or not os.path.isfile(path) or _holds_stores(data):
        return
    from arrowtune.data import hosting

    hosting.start_ahead(path)


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}


def _holds_stores(data: Mapping[str, Any]) -> bool:
    """Whether the cache holds anything: what the run needs may be there, and then no engine is needed."""
    if data.get("force_recache") or data.get("disable_cache"):
        return False
    try:
        return any(os.scandir(os.path.join(cache_folder(data.get("cache_dir"))[0], "stores")))
    except (OSError, TypeError):
        return False
