"""A store gives back what was written, however it was written; a torn one is never read."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowtune.data.store import Places, Store, Writer
from arrowtune.data.store_batch import make_batch
from arrowtune.data.store_format import schema
from arrowtune.errors import StoreError
from arrowtune.protocols import Tokens

MANIFEST = {"identity": "abc", "sources": [{"name": "a.jsonl"}, {"name": "b.jsonl"}]}


def tokens(lengths: list[int], seed: int, fractional: bool = False) -> Tokens:
    """Random examples of these lengths."""
    random = np.random.default_rng(seed)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))])
    ids = random.integers(0, 2**31 - 1, int(offsets[-1]), dtype=np.int32)
    weights = random.choice([0.0, 0.25, 1.0] if fractional else [0.0, 1.0], int(offsets[-1])).astype(np.float32)
    return Tokens(ids, weights, offsets)


def write(path: Path, parts: list[Tokens], *, fractional: bool = False, file_bytes: int = 1 << 30) -> Path:
    """Write a store in parts."""
    with Writer(path, fractional=fractional, file_bytes=file_bytes) as writer:
        for number, part in enumerate(parts):
            rows = np.arange(len(part.offsets) - 1, dtype=np.int64)
            writer.append(part, Places(np.full(len(rows), number % 2, np.int32), rows, rows + 1))
        return writer.publish(MANIFEST)


lengths = st.lists(st.integers(1, 30), max_size=12)


@settings(max_examples=40)
@given(st.lists(lengths, min_size=1, max_size=4), st.booleans(), st.sampled_from([1, 2000, 1 << 30]), st.data())
def test_read_of_write_is_the_same(parts: list[list[int]], fractional: bool, file_bytes: int, data: st.DataObject) -> None:
    written = [tokens(part, seed, fractional) for seed, part in enumerate(parts)]
    examples = [
        (part.input_ids[start:stop], part.loss_weights[start:stop], number % 2, row)
        for number, part in enumerate(written)
        for row, (start, stop) in enumerate(zip(part.offsets[:-1], part.offsets[1:], strict=True))
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(write(Path(folder) / "store", written, fractional=fractional, file_bytes=file_bytes))
        store.verify()
        assert len(store) == len(examples)
        assert store.lengths.tolist() == [len(ids) for ids, *_ in examples]
        assert store.trained_tokens.tolist() == [int((weights[1:] > 0).sum()) for _, weights, *_ in examples]
        assert store.loss_weight_sums.tolist() == [float(weights[1:].sum(dtype=np.float64)) for _, weights, *_ in examples]
        for number, (ids, weights, file, row) in enumerate(examples):
            example = store[number]
            assert np.array_equal(example.input_ids, ids)
            assert np.array_equal(example.loss_weights, weights)
            assert example.origin is not None
            assert (example.origin.file, example.origin.row, example.origin.line) == (["a.jsonl", "b.jsonl"][file], row, row + 1)
        wanted = data.draw(st.lists(st.integers(0, len(examples) - 1), max_size=10)) if examples else []
        fetched = store.fetch(np.array(wanted, np.int64))
        assert fetched.offsets.tolist() == np.cumsum([0, *(len(examples[row][0]) for row in wanted)]).tolist()
        assert fetched.input_ids.tolist() == [token for row in wanted for token in examples[row][0].tolist()]
        assert fetched.loss_weights.tolist() == [weight for row in wanted for weight in examples[row][1].tolist()]


@settings(max_examples=25)
@given(st.data())
def test_a_torn_store_is_never_read(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "store", [tokens([3, 5, 8], 0), tokens([2] * 40, 1)], file_bytes=200)
        names = sorted(file.name for file in path.iterdir())
        victim = path / data.draw(st.sampled_from(names))
        keep = data.draw(st.integers(-1, victim.stat().st_size - 1))
        if keep < 0:
            victim.unlink()
        else:
            victim.write_bytes(victim.read_bytes()[:keep])
        with pytest.raises(StoreError) as caught:
            Store(path)
        assert "arrowtune prepare" in caught.value.hint


def test_a_flipped_bit_is_found_by_verify(tmp_path: Path) -> None:
    path = write(tmp_path / "store", [tokens([30], 0)])
    file = path / "data-00000.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match=r"data-00000\.arrow"):
        Store(path).verify()


@settings(max_examples=30)
@given(lengths, st.booleans(), st.integers(1, 300), st.integers(0, 5))
def test_large_record_batches_are_cut_and_lose_nothing(sizes: list[int], fractional: bool, most: int, ahead: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, path = tokens(sizes, 1, fractional), Path(folder) / "store"
        rows = np.arange(len(sizes), dtype=np.int64)
        batch = make_batch(whole, Places(np.zeros(len(rows), np.int32), rows, rows + 1), schema(fractional))
        with Writer(path, fractional=fractional, batch_bytes=most) as writer:
            # A batch may be a part of a longer one.
            writer.append_batch(batch.slice(min(ahead, len(sizes))))
            writer.append_batch(batch.slice(0, min(ahead, len(sizes))))
            writer.publish(MANIFEST)
        store = Store(path)
        order = np.concatenate([rows[ahead:], rows[:ahead]])
        assert store.lengths.tolist() == np.array(sizes, np.int64)[order].tolist()
        assert store.trained_tokens.tolist() == [int((example.loss_weights[1:] > 0).sum()) for example in store]
        for place, row in enumerate(order.tolist()):
            part = slice(whole.offsets[row], whole.offsets[row + 1])
            assert store[place].input_ids.tolist() == whole.input_ids[part].tolist()
            assert store[place].loss_weights.tolist() == whole.loss_weights[part].tolist()
            assert str(store[place].origin) == f"a.jsonl:{row + 1}"
        for file in path.glob("data-*"):
            reader = pa.ipc.open_file(file)
            for index in range(reader.num_record_batches):
                held = reader.get_batch(index)
                assert held.num_rows == 1 or held["input_ids"].values.nbytes + held["loss_weights"].values.nbytes <= most


FEW_DESCRIPTORS = """
import resource, sys
import numpy as np
from arrowtune.data.store import Store
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
stores = [Store(sys.argv[1]) for _ in range(3)]
for store in stores:
    fetched = store.fetch(np.arange(len(store)))
print(len(list(Store(sys.argv[1]).path.glob("data-*"))), int(fetched.offsets[-1]))
"""


def test_thousands_of_files_open_where_256_descriptors_are_allowed(tmp_path: Path) -> None:
    path = write(tmp_path / "store", [tokens([2], seed) for seed in range(2000)], file_bytes=1)
    done = subprocess.run([sys.executable, "-c", FEW_DESCRIPTORS, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2000", "4000"], done.stderr


def test_a_store_pickles_as_its_path(tmp_path: Path) -> None:
    path = write(tmp_path / "store", [tokens([3, 4], 0)])
    store = pickle.loads(pickle.dumps(Store(path, name="mine")))
    assert (store.name, store[1].input_ids.tolist()) == ("mine", Store(path)[1].input_ids.tolist())
    assert store[-1].origin == Store(path)[1].origin
    with pytest.raises(IndexError):
        store[2]
    with pytest.raises(IndexError):
        store.fetch(np.array([0, 2]))


def test_what_is_not_published_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with Writer(tmp_path / "store") as writer:
            writer.append(tokens([3], 0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_writer_refuses_what_a_store_cannot_hold(tmp_path: Path) -> None:
    with Writer(tmp_path / "store") as writer:
        with pytest.raises(ValueError, match="empty"):
            writer.append(Tokens(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(2, np.int64)))
        with pytest.raises(ValueError, match="fractional"):
            writer.append(Tokens(np.ones(2, np.int32), np.full(2, 0.5, np.float32), np.array([0, 2])))
