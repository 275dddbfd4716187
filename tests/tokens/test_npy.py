"""The .npy parser against bytes that numpy 2.4.6 wrote, and against headers made by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from initdiag.tokens import TokenBatch

Load = Callable[..., TokenBatch]
Sentence = Callable[..., str]
Write = Callable[..., bytes]

CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}


def npy(header: str | bytes, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    raw = header.encode("latin-1") if isinstance(header, str) else header
    length = struct.pack("<H" if version[0] == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes(version) + length + raw + data


def described(descr: str = "'<i8'", shape: str = "(9,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def numpy_wrote(prefix: str, dictionary: bytes, width: int, data: str) -> bytes:
    """Put together what numpy wrote: the spaces that fill its header up are left out of the literals below."""
    return bytes.fromhex(prefix) + dictionary.ljust(width - 1) + b"\n" + bytes.fromhex(data)


# Each from numpy.lib.format.write_array of numpy 2.4.6: arange(5, dtype="<i8"); [[1, 258], [3, 4]] of ">u2"; version 2
# with [7, 255, 0] of "u1"; version 3 with [1, 2, 3] of "<u4".
BY_NUMPY = [
    (
        numpy_wrote(
            "934e554d5059010076 00",
            b"{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }",
            118,
            "0000000000000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000",
        ),
        (0, 1, 2, 3, 4),
    ),
    (
        numpy_wrote(
            "934e554d5059010076 00",
            b"{'descr': '>u2', 'fortran_order': False, 'shape': (2, 2), }",
            118,
            "0001 0102 0003 0004",
        ),
        (1, 258, 3, 4),
    ),
    (
        numpy_wrote(
            "934e554d5059020074 000000", b"{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }", 116, "07ff00"
        ),
        (7, 255, 0),
    ),
    (
        numpy_wrote(
            "934e554d5059030074 000000",
            b"{'descr': '<u4', 'fortran_order': False, 'shape': (3,), }",
            116,
            "01000000 02000000 03000000",
        ),
        (1, 2, 3),
    ),
]


@pytest.mark.parametrize(("content", "ids"), BY_NUMPY)
def test_files_written_by_numpy(load: Load, write: Write, content: bytes, ids: tuple[int, ...]) -> None:
    write("x.npy", content)
    batch = load(source="file", path="x.npy", batch=1, length=len(ids) - 1)
    assert batch.inputs == (ids[:-1],)
    assert batch.targets == (ids[1:],)
    assert batch.total == len(ids)


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("order", "<>")
def test_every_integer_type(load: Load, write: Write, kind: str, order: str) -> None:
    ids = list(range(100))
    mark = "|" if kind[1] == "1" else order
    write("x.npy", npy(described(f"'{mark}{kind}'", "(100,)"), struct.pack(f"{order}100{CODES[kind]}", *ids)))
    batch = load(source="file", path="x.npy", batch=3, length=7, vocab_size=100)
    for row, next_ in zip(batch.inputs, batch.targets, strict=True):
        assert row == tuple(range(row[0], row[0] + 7))
        assert next_ == tuple(range(row[0] + 1, row[0] + 8))


def test_rows_are_one_stream(load: Load, write: Write) -> None:
    write("x.npy", npy(described("'<u2'", "(3, 3)"), struct.pack("<9H", *range(9))))
    assert load(source="file", path="x.npy", batch=1).inputs == (tuple(range(8)),)


def test_fortran_order_of_one_dimension_is_c_order(load: Load, write: Write) -> None:
    write("x.npy", npy(described("'<u2'", order="True"), struct.pack("<9H", *range(9))))
    assert load(source="file", path="x.npy", batch=1).inputs == (tuple(range(8)),)


def test_a_dtype_that_agrees(load: Load, write: Write) -> None:
    write("x.npy", npy(described("'<u2'"), struct.pack("<9H", *range(9))))
    assert load(source="file", path="x.npy", dtype="uint16").total == 9


NINE = struct.pack("<9q", *range(9))
DICT = "expected a dict with descr, fortran_order and shape"
INTEGERS = "expected integers of 1, 2, 4 or 8 bytes"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty, expected tokens"),
        (b"PK\x03\x04garbage", "is no .npy file: it begins with b'PK\\x03\\x04ga', expected b'\\x93NUMPY'"),
        (b"\x93NUM", "is no .npy file: it begins with b'\\x93NUM', expected b'\\x93NUMPY'"),
        (b"\x93NUMPY", "truncated: found 6 bytes, expected a header"),
        (b"\x93NUMPY\x01\x00\x76", "truncated: found 9 bytes, expected a header"),
        (npy(described(), NINE, (4, 0)), "is of .npy version 4.0, expected 1, 2 or 3"),
        (npy(described(), NINE, (0, 9)), "is of .npy version 0.9, expected 1, 2 or 3"),
        (npy(described(), NINE)[:30], "truncated: found 30 bytes, expected a header of 67"),
        (npy(" " * 10_001), "the .npy header has 10,001 bytes, expected at most 10,000"),
        (npy("not a dict"), f"the .npy header is b'not a dict', {DICT}"),
        (npy("[1, 2]"), f"the .npy header is b'[1, 2]', {DICT}"),
        (npy("{'descr': '<i8'}"), f"the .npy header is b\"{{'descr': '<i8'}}\", {DICT}"),
        (npy("-" * 9_999 + "1"), f"the .npy header is b'{'-' * 77}…, {DICT}"),
        (npy("(" * 9_999), f"the .npy header is b'{'(' * 77}…, {DICT}"),
        (npy(b"\xff{}", version=(3, 0)), f"the .npy header is b'\\xff{{}}', {DICT}"),
        (npy(described("'<f4'"), NINE), f"the dtype of the array is '<f4', {INTEGERS}"),
        (npy(described("'|b1'"), NINE), f"the dtype of the array is '|b1', {INTEGERS}"),
        (npy(described("'|O'"), NINE), f"the dtype of the array is '|O', {INTEGERS}"),
        (npy(described("'<U4'"), NINE), f"the dtype of the array is '<U4', {INTEGERS}"),
        (npy(described("'|i8'"), NINE), f"the dtype of the array is '|i8', {INTEGERS}"),
        (npy(described("'<i3'"), NINE), f"the dtype of the array is '<i3', {INTEGERS}"),
        (npy(described("'<i16'"), NINE), f"the dtype of the array is '<i16', {INTEGERS}"),
        (npy(described("8"), NINE), f"the dtype of the array is 8, {INTEGERS}"),
        (
            npy(described("[('a', '<i4'), ('b', '<i4')]"), NINE),
            f"the dtype of the array is [('a', '<i4'), ('b', '<i4')], {INTEGERS}",
        ),
        (npy(described(shape="()"), NINE), "the shape of the array is (), expected 1 or 2 dimensions"),
        (npy(described(shape="(3, 3, 1)"), NINE), "the shape of the array is (3, 3, 1), expected 1 or 2 dimensions"),
        (npy(described(shape="9"), NINE), "the shape of the array is 9, expected a tuple of sizes"),
        (npy(described(shape="(-9,)"), NINE), "the shape of the array is (-9,), expected a tuple of sizes"),
        (npy(described(shape="(True,)"), NINE), "the shape of the array is (True,), expected a tuple of sizes"),
        (npy(described(shape="(9.0,)"), NINE), "the shape of the array is (9.0,), expected a tuple of sizes"),
        (
            npy(described(shape=f"(1{'0' * 4000}, 1{'0' * 4000})"), NINE),
            f"the shape of the array is (1{'0' * 77}…, expected a tuple of sizes",
        ),
        (npy(described(order="1"), NINE), "fortran_order is 1, expected True or False"),
        (
            npy(described(shape="(3, 3)", order="True"), NINE),
            "the array is in Fortran order, expected C order (numpy.ascontiguousarray)",
        ),
        (
            npy(described(), NINE[:-3]),
            "truncated: found 69 bytes of data, expected 72 for 9 ids of type int64",
        ),
        (
            npy(described(), NINE + b"x"),
            "longer than its array: found 73 bytes of data, expected 72 for 9 ids of type int64",
        ),
        (
            npy(described(shape="(9223372036854775807, 9223372036854775807)"), NINE),
            f"truncated: found 72 bytes of data, expected {8 * (2**63 - 1) ** 2:,} "
            f"for {(2**63 - 1) ** 2:,} ids of type int64",
        ),
        (npy(described(shape="(8,)"), NINE[:64]), "too short: found 8 tokens, expected at least tokens.length + 1 = 9"),
        (npy(described(shape="(0, 5)")), "too short: found 0 tokens, expected at least tokens.length + 1 = 9"),
        (
            npy(described(), struct.pack("<9q", 0, 1, 2, 3, 4, -100, 6, 7, 8)),
            "token id -100 at token 5 (from 0), expected ids from 0 to 50,256 for a vocabulary of 50,257",
        ),
        (
            npy(described("'>u8'"), struct.pack(">9Q", 0, 1, 2, 3, 4, 5, 6, 7, 2**64 - 1)),
            f"token id {2**64 - 1} at token 8 (from 0), expected ids from 0 to 50,256 for a vocabulary of 50,257",
        ),
    ],
)
def test_sentences(sentence: Sentence, write: Write, content: bytes, expected: str) -> None:
    write("x.npy", content)
    assert sentence(source="file", path="x.npy") == f"x.npy: {expected}"


def test_a_dtype_that_disagrees(sentence: Sentence, write: Write) -> None:
    write("x.npy", npy(described(), NINE))
    message = sentence(source="file", path="x.npy", dtype="uint16")
    assert message == "x.npy: tokens.dtype is uint16, but the file's own header says int64"
