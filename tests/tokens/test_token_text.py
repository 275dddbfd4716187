"""Text as bytes, and through a tokenizer.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from initdiag.tokens import TokenBatch, text

Load = Callable[..., TokenBatch]
Sentence = Callable[..., str]
Write = Callable[..., bytes]

EXTRA = "a tokenizer needs the extra: pip install 'initdiag[text]'"


def word(at: int) -> str:
    """A word of letters that is different for every number."""
    return "w" + "".join(chr(ord("a") + int(digit)) for digit in str(at))


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """tokens.json with one id for each of 60 words, 60 for ü, 61 for anything else, and settings to be switched off."""
    vocabulary = {word(at): at for at in range(60)} | {"ü": 60, "[UNK]": 61}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 1000},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 61,
            "pad_type_id": 0,
            "pad_token": "[UNK]",
        },
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[UNK]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[UNK]": {"id": "[UNK]", "ids": [61], "tokens": ["[UNK]"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return path


def test_bytes(load: Load, write: Write) -> None:
    content = write("x.txt", bytes(range(256)))
    batch = load(source="text", path="x.txt", vocab_size=256, batch=4, length=30)
    assert (batch.source, batch.path, batch.total, batch.distinct) == ("text", "x.txt", 256, 124)
    for row, next_ in zip(batch.inputs, batch.targets, strict=True):
        assert bytes(row) == content[row[0] : row[0] + 30]
        assert bytes(next_) == content[row[0] + 1 : row[0] + 31]
    assert batch.describe() == "x.txt: 4 windows × 30 bytes of 256; 124 distinct"


def test_ascii_needs_only_128_ids(load: Load, write: Write) -> None:
    write("x.txt", b"All of this is ASCII.\r\n")
    assert load(source="text", path="x.txt", vocab_size=128, length=22, batch=1).targets[0][-2:] == (13, 10)


def test_seeds(load: Load, write: Write) -> None:
    write("x.txt", bytes(range(256)) * 9)
    assert load(source="text", path="x.txt", seed=1) == load(source="text", path="x.txt", seed=1)
    assert load(source="text", path="x.txt", seed=1) != load(source="text", path="x.txt", seed=2)


def test_byte_sentences(sentence: Sentence, write: Write) -> None:
    write("x.txt", b"nine of\xc3\xbc")
    assert sentence(source="text", path="x.txt", vocab_size=128, batch=1) == (
        "x.txt: token id 195 at byte 7 (from 0), expected ids from 0 to 127 for a vocabulary of 128"
    )
    assert sentence(source="text", path="x.txt", length=9) == (
        "x.txt: too short: found 9 tokens, expected at least tokens.length + 1 = 10"
    )
    write("x.txt", b"")
    assert sentence(source="text", path="x.txt") == "x.txt: the file is empty, expected text"


def test_tokenized_whole(load: Load, write: Write, words: Path) -> None:
    """No truncation to 4, no padding to 1000 and no special token, whatever the tokenizer.json says."""
    write("x.txt", "\n".join(word(at) for at in range(60)).encode())
    batch = load(source="text", path="x.txt", tokenizer=words.name, vocab_size=62, batch=3, length=15)
    assert batch.total == 60
    for row, next_ in zip(batch.inputs, batch.targets, strict=True):
        assert row == tuple(range(row[0], row[0] + 15))
        assert next_ == tuple(range(row[0] + 1, row[0] + 16))
    whole = load(source="text", path="x.txt", tokenizer=words.name, vocab_size=62, batch=1, length=59)
    assert (whole.inputs[0][0], whole.targets[0][-1]) == (0, 59)
    assert whole.describe() == "x.txt: 1 window × 59 tokens of 60; 60 distinct"


def test_tokenized_seeds(load: Load, write: Write, words: Path) -> None:
    write("x.txt", " ".join(word(at) for at in range(60)).encode())
    first, again, other = (
        load(source="text", path="x.txt", tokenizer=words.name, vocab_size=62, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_an_excerpt_of_a_long_text(
    load: Load, write: Write, words: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Cuts may fall inside a character of two bytes; the text between them is still UTF-8, and in its order."""
    monkeypatch.setattr(text, "_EXCERPT", 501)
    write("x.txt", " ".join("ü" * (1 + at % 3) for at in range(5000)).encode())
    seen = set()
    for seed in range(20):
        batch = load(source="text", path="x.txt", tokenizer=words.name, vocab_size=62, length=4, seed=seed)
        assert batch.total is None
        assert batch.describe().startswith("x.txt: 2 windows × 4 tokens of an excerpt; ")
        seen |= {id_ for row in batch.inputs for id_ in row}
    assert seen == {60, 61}


def test_the_excerpt_grows_until_its_tokens_suffice(
    load: Load, write: Write, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_EXCERPT", 10)
    monkeypatch.setattr(text, "_BYTES_PER_TOKEN", 1)
    write("x.txt", b"".join(word(at % 60).encode() + b" " * 96 for at in range(1000)))
    batch = load(source="text", path="x.txt", tokenizer=words.name, vocab_size=62, batch=1, length=20)
    assert batch.total is None
    whole = load(source="text", path="x.txt", tokenizer=words.name, vocab_size=62, batch=1, length=999)
    assert whole.total == 1000


def test_tokenized_sentences(sentence: Sentence, write: Write, words: Path) -> None:
    name = words.name
    write("x.txt", "ü ü ü wa wb wc wd we wz".encode())
    assert sentence(source="text", path="x.txt", tokenizer=name, vocab_size=60, batch=1) == (
        "x.txt: token id 60 at byte 0 (from 0), expected ids from 0 to 59 for a vocabulary of 60"
    )
    assert sentence(source="text", path="x.txt", tokenizer=name, vocab_size=61, batch=1) == (
        "x.txt: token id 61 at byte 24 (from 0), expected ids from 0 to 60 for a vocabulary of 61"
    )
    assert sentence(source="text", path="x.txt", tokenizer=name, vocab_size=62, length=9) == (
        "x.txt: too short: found 9 tokens, expected at least tokens.length + 1 = 10"
    )
    write("x.txt", b"wa \xff wb")
    assert sentence(source="text", path="x.txt", tokenizer=name) == (
        "x.txt: byte 0xff at byte 3 is not UTF-8, expected UTF-8 text for a tokenizer"
    )
    write("x.txt", b"wa \xc3")
    assert sentence(source="text", path="x.txt", tokenizer=name) == (
        "x.txt: byte 0xc3 at byte 3 is not UTF-8, expected UTF-8 text for a tokenizer"
    )
    write("x.txt", b"")
    assert sentence(source="text", path="x.txt", tokenizer=name) == "x.txt: the file is empty, expected text"


def test_a_byte_offset_counts_from_the_start_of_the_file(
    sentence: Sentence, write: Write, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_EXCERPT", 300)
    content = write("x.txt", " ".join(["ü"] * 2000).encode())
    offsets = []
    for seed in range(10):
        message = sentence(source="text", path="x.txt", tokenizer=words.name, vocab_size=60, seed=seed)
        offsets.append(int(message.partition("at byte ")[2].partition(" ")[0].replace(",", "")))
        assert content[offsets[-1] : offsets[-1] + 2] == "ü".encode()
    assert max(offsets) > 600  # farther than any place inside an excerpt


def test_tokenizer_sentences(sentence: Sentence, write: Write, words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("x.txt", b"some text")
    tokenizer = json.loads(words.read_text())
    assert sentence(source="text", path="x.txt", tokenizer="none.json").startswith("none.json: no such file (looked")
    write("t.json", b"")
    assert sentence(source="text", path="x.txt", tokenizer="t.json") == (
        "t.json: the file is empty, expected a tokenizer.json"
    )
    for content in (b"{}", b"[", b"\xff", b'{"model": {"type": "BPE"}}', b"some text"):
        write("t.json", content)
        assert sentence(source="text", path="x.txt", tokenizer="t.json").startswith(
            "t.json: is no tokenizer, expected the tokenizer.json of a model ("
        )
    tokenizer["model"] |= {"vocab": {"wa": 0}, "unk_token": "gone"}
    tokenizer["post_processor"] = None
    write("t.json", json.dumps(tokenizer).encode())
    assert sentence(source="text", path="x.txt", tokenizer="t.json").startswith(
        "x.txt: can't be tokenized with t.json ("
    )
    monkeypatch.setattr(text, "_LARGEST_TOKENIZER", 100)
    assert sentence(source="text", path="x.txt", tokenizer=words.name) == (
        f"tokenizer.json: has {words.stat().st_size:,} bytes, expected at most 100 for a tokenizer.json"
    )


def test_without_the_extra(sentence: Sentence, write: Write, words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("x.txt", b"some text")
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it weren't installed
    assert sentence(source="text", path="x.txt", tokenizer=words.name) == f"tokenizer.json: {EXTRA}"
