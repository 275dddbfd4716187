"""Raw .bin files, with and without the header of llm.c."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from initdiag.tokens import TokenBatch

Load = Callable[..., TokenBatch]
Sentence = Callable[..., str]
Write = Callable[..., bytes]

IDS = [(7919 * at + 13) % 50257 for at in range(500)]  # all different: 7919 and 50257 are primes
WIDE = [(7919 * at + 13) % 128256 for at in range(500)]


def assert_windows_of(batch: TokenBatch, ids: list[int]) -> None:
    """Every row stands in the file exactly so, and its targets are shifted by one; the ids of the file are distinct."""
    for row, next_ in zip(batch.inputs, batch.targets, strict=True):
        begin = ids.index(row[0])
        assert list(row) == ids[begin : begin + batch.length]
        assert list(next_) == ids[begin + 1 : begin + 1 + batch.length]


@pytest.mark.parametrize(
    ("ids", "code", "vocab_size", "dtype", "header"),
    [
        (IDS, "H", 50257, None, None),
        (IDS, "H", 65536, None, None),
        (IDS, "H", 128256, "uint16", None),
        (WIDE, "I", 128256, None, None),
        (WIDE, "I", 128256, "uint32", None),
        (IDS, "I", 50257, "uint32", None),
        (IDS, "I", 65537, None, None),
        (IDS, "H", 50257, None, (20240520, 1, 500)),
        (IDS, "H", 50257, "uint16", (20240520, 1, 500)),
        (IDS, "H", 128256, None, (20240520, 1, 500)),
        (IDS, "I", 50257, None, (20240520, 1, 500)),
        (WIDE, "I", 128256, None, (20240801, 7, 500)),
        (WIDE, "I", 128256, "uint32", (20240801, 7, 500)),
    ],
)
def test_windows_are_the_content_of_the_file(
    *,
    load: Load,
    write: Write,
    ids: list[int],
    code: str,
    vocab_size: int,
    dtype: str | None,
    header: tuple[int, int, int] | None,
) -> None:
    write("train.bin", ids, code, header)
    batch = load(source="file", path="train.bin", vocab_size=vocab_size, dtype=dtype, batch=5, length=20)
    assert (batch.source, batch.path, batch.total, batch.vocab_size) == ("file", "train.bin", 500, vocab_size)
    assert (batch.batch, batch.length) == (5, 20)
    assert_windows_of(batch, ids)
    assert batch.distinct == 5 * 21  # disjoint
    assert batch.distinct_targets == 5 * 20
    assert batch.describe() == "train.bin: 5 windows × 20 tokens of 500; 105 distinct"


def test_a_seed_is_a_batch(load: Load, write: Write) -> None:
    write("train.bin", IDS)
    assert load(source="file", path="train.bin", seed=3) == load(source="file", path="train.bin", seed=3)
    assert load(source="file", path="train.bin", seed=3) != load(source="file", path="train.bin", seed=4)


def test_the_shortest_file(load: Load, write: Write) -> None:
    write("x.bin", IDS[:9])
    batch = load(source="file", path="x.bin", batch=2)
    assert batch.inputs == (tuple(IDS[:8]),) * 2
    assert batch.targets == (tuple(IDS[1:9]),) * 2


def test_only_the_windows_are_read(load: Load, tmp_path: Path) -> None:
    """A sparse file of 2 TiB takes no time. All its ids are 0, which is odd but not a sign of a wrong dtype."""
    with (tmp_path / "huge.bin").open("wb") as file:
        try:
            file.truncate(2**41)
        except OSError:
            pytest.skip("this file system has no sparse files of 2 TiB")
    batch = load(source="file", path="huge.bin", batch=4, length=1024)
    assert batch.total == 2**40
    assert batch.describe() == "huge.bin: 4 windows × 1,024 tokens of 1,099,511,627,776; 1 distinct"


def test_absolute_paths_and_upper_case_suffixes(load: Load, write: Write, tmp_path: Path) -> None:
    write("X.BIN", IDS)
    path = str(tmp_path / "X.BIN")
    assert load(source="file", path=path).path == path


@pytest.mark.parametrize(
    ("content", "code", "header", "arguments", "expected"),
    [
        (
            IDS[:8],
            "H",
            None,
            {},
            "x.bin: too short: found 8 tokens, expected at least tokens.length + 1 = 9",
        ),
        (
            [5],
            "H",
            None,
            {"length": 2000},
            "x.bin: too short: found 1 token, expected at least tokens.length + 1 = 2,001",
        ),
        (
            [],
            "H",
            (20240520, 1, 0),
            {},
            "x.bin: too short: found 0 tokens, expected at least tokens.length + 1 = 9",
        ),
        (b"", "H", None, {}, "x.bin: the file is empty, expected tokens"),
        (b"a", "H", None, {}, "x.bin: the size of the file is 1 bytes, expected a multiple of 2 for uint16 ids"),
        (
            b"abc" * 401,
            "H",
            None,
            {},
            "x.bin: the size of the file is 1,203 bytes, expected a multiple of 2 for uint16 ids",
        ),
        (
            IDS[:99],
            "H",
            None,
            {"vocab_size": 128256},
            "x.bin: the size of the file is 198 bytes, expected a multiple of 4 for uint32 ids; "
            "if it holds uint16 ids, set tokens.dtype: uint16",
        ),
        (
            IDS,
            "H",
            (20240520, 1, 501),
            {},
            "x.bin: the header counts 501 tokens, but 1,000 bytes follow it, "
            "expected 1,002 or 2,004 for uint16 or uint32",
        ),
        (
            IDS,
            "H",
            (20240801, 7, 500),
            {},
            "x.bin: the header counts 500 tokens, but 1,000 bytes follow it, expected 2,000 for uint32",
        ),
        (
            IDS,
            "H",
            (20240520, 1, -500),
            {},
            "x.bin: the header counts -500 tokens, but 1,000 bytes follow it, expected a count of at least 0",
        ),
        (
            IDS,
            "H",
            (20240522, 1, 500),
            {},
            "x.bin: is an llm.c evaluation file (magic 20240522), expected a stream of tokens",
        ),
        (
            struct.pack("<2i", 20240520, 1),
            "H",
            None,
            {},
            "x.bin: begins like a header (magic 20240520), but has 8 bytes, expected at least 1,024",
        ),
        (
            IDS,
            "H",
            (20240520, 1, 500),
            {"dtype": "uint32"},
            "x.bin: tokens.dtype is uint32, but the file's own header says uint16",
        ),
        (
            [1, 2, 3, 4, 5, 6, 7, 8, 100],
            "H",
            None,
            {"vocab_size": 100},
            "x.bin: token id 100 at token 8 (from 0), expected ids from 0 to 99 for a vocabulary of 100",
        ),
        (
            [1, 2, 3, 4, 5, 6, 7, 8, 100],
            "I",
            (20240520, 1, 9),
            {"vocab_size": 100},
            "x.bin: token id 100 at token 8 (from 0), expected ids from 0 to 99 for a vocabulary of 100",
        ),
    ],
)
def test_sentences(
    *,
    sentence: Sentence,
    write: Write,
    content: bytes | list[int],
    code: str,
    header: tuple[int, int, int] | None,
    arguments: dict[str, object],
    expected: str,
) -> None:
    write("x.bin", content, code, header)
    assert sentence(source="file", path="x.bin", **arguments) == expected


def test_uint32_read_as_uint16_is_noticed_although_every_id_is_valid(sentence: Sentence, write: Write) -> None:
    write("x.bin", IDS, "I")
    assert sentence(source="file", path="x.bin", batch=2, length=31) == (
        "x.bin: the ids between the others are all 0, as when uint32 ids are read as uint16; "
        "expected tokens.dtype: uint32, or tokens.dtype: uint16 if the zeros are meant"
    )


@pytest.mark.parametrize(("vocab_size", "read_as"), [(50257, "uint16"), (128256, "uint32")])
def test_64_bit_ids_are_noticed(sentence: Sentence, write: Write, vocab_size: int, read_as: str) -> None:
    write("x.bin", IDS, "q")
    assert sentence(source="file", path="x.bin", length=32, vocab_size=vocab_size) == (
        f"x.bin: the ids between the others are all 0, as when 64-bit ids are read as {read_as}; "
        f"expected a .bin of uint16 or uint32, or a .npy file, or tokens.dtype: {read_as} if the zeros are meant"
    )


def test_a_stated_dtype_is_believed(load: Load, write: Write) -> None:
    """Synthetic tasks may well have a separator, 0, at every second place."""
    write("x.bin", [id_ for pair in zip(range(1, 251), [0] * 250, strict=True) for id_ in pair])
    assert load(source="file", path="x.bin", dtype="uint16", length=64).total == 500


def test_zeros_at_even_places_are_no_sign_of_wider_ids(load: Load, write: Write) -> None:
    write("x.bin", [id_ for pair in zip([0] * 250, range(1, 251), strict=True) for id_ in pair])
    assert load(source="file", path="x.bin", length=64).total == 500


def test_a_few_zeros_are_no_sign_of_wider_ids(load: Load, write: Write) -> None:
    write("x.bin", [5, 0, 6, 0, 7, 0, 8, 0, 9])
    assert load(source="file", path="x.bin", batch=1).total == 9


def test_hint_wider(sentence: Sentence, write: Write) -> None:
    write("x.bin", IDS, "I")
    message = sentence(source="file", path="x.bin", dtype="uint16", vocab_size=100, length=64)
    assert message.endswith("; this looks like uint32 ids read as uint16: try tokens.dtype: uint32")


def test_hint_narrower(sentence: Sentence, write: Write) -> None:
    write("x.bin", IDS, "H")
    message = sentence(source="file", path="x.bin", vocab_size=128256)
    assert message.endswith("; this looks like pairs of uint16 ids read as uint32: try tokens.dtype: uint16")


def test_no_hint_when_the_vocabulary_is_merely_too_small(sentence: Sentence, write: Write) -> None:
    write("x.bin", WIDE, "I")
    assert "looks like" not in sentence(source="file", path="x.bin", vocab_size=100_000, length=60)
