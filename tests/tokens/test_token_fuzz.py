"""Arbitrary content: a valid batch or a TokenError of one line, and nothing else."""

from __future__ import annotations

import struct
import tempfile
import warnings
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from initdiag.config.schema import TokenSettings
from initdiag.errors import TokenError
from initdiag.tokens import read

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple))


def outcome(name: str, content: bytes, source: str, vocab_size: int, **settings: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content)
        try:
            batch = read(
                TokenSettings(source=source, path=name, batch=2, **settings),  # type: ignore[arg-type]
                vocab_size=vocab_size,
                length=3,
                seed=0,
                folder=Path(folder),
            )
        except TokenError as error:
            assert str(error).startswith(f"{name}: ")
            assert "\n" not in str(error)
            return
    assert (batch.batch, batch.length) == (2, 3)
    assert batch.total is not None
    assert batch.total >= 4
    for row, next_ in zip(batch.inputs, batch.targets, strict=True):
        assert row[1:] == next_[:-1]
        assert all(0 <= id_ < vocab_size for id_ in row + next_)


SIZES = st.sampled_from([1, 256, 1000, 65536, 65537, 2**32, 2**64])


@given(st.binary(max_size=200), SIZES, st.sampled_from([None, "uint16", "uint32"]))
def test_bin(content: bytes, vocab_size: int, dtype: str | None) -> None:
    outcome("x.bin", content, "file", vocab_size, dtype=dtype)


@given(
    st.sampled_from([20240520, 20240801, 20240522]),
    st.integers(-(2**31), 2**31 - 1) | st.integers(0, 100),
    st.binary(max_size=64),
    st.integers(4, 1100),
    SIZES,
)
def test_bin_with_a_header(magic: int, count: int, data: bytes, cut: int, vocab_size: int) -> None:
    content = struct.pack("<256i", magic, 1, count, *[0] * 253) + data
    outcome("x.bin", content[:cut], "file", vocab_size)


@given(st.binary(max_size=200), SIZES)
def test_npy(content: bytes, vocab_size: int) -> None:
    outcome("x.npy", content, "file", vocab_size)


@given(st.binary(max_size=20), st.integers(0, 5), st.binary(max_size=60), SIZES)
def test_npy_behind_its_magic(rest: bytes, version: int, data: bytes, vocab_size: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of the parser, about headers such as '\d'
        header = b"\x93NUMPY" + bytes([version, 0]) + len(rest).to_bytes(2 if version == 1 else 4, "little")
        outcome("x.npy", header + rest + data, "file", vocab_size)


@given(
    descr=VALUES | st.sampled_from(["<i8", ">u2", "|u1", "<i4"]),
    order=VALUES | st.booleans(),
    shape=VALUES | st.lists(st.integers(0, 8), min_size=1, max_size=2).map(tuple),
    data=st.binary(max_size=64),
    version=st.sampled_from([1, 2, 3]),
    vocab_size=SIZES,
)
def test_npy_with_a_dict(*, descr: Any, order: Any, shape: Any, data: bytes, version: int, vocab_size: int) -> None:
    raw = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode("utf-8", "replace")
    header = b"\x93NUMPY" + bytes([version, 0]) + len(raw).to_bytes(2 if version == 1 else 4, "little")
    outcome("x.npy", header + raw + data, "file", vocab_size)


@given(st.binary(max_size=50), SIZES)
def test_text(content: bytes, vocab_size: int) -> None:
    outcome("x.txt", content, "text", vocab_size)
