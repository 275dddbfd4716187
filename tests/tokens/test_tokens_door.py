"""What every source has in common: settings, paths, the operating system, and a cheap import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from initdiag.config.schema import TokenSettings
from initdiag.errors import TokenError
from initdiag.tokens import TokenBatch, opening, read

Load = Callable[..., TokenBatch]
Sentence = Callable[..., str]
Write = Callable[..., bytes]


def test_importing_the_room_is_cheap() -> None:
    """Without torch, numpy, pydantic and tokenizers, so that an error about tokens comes at once."""
    heavy = {"torch", "numpy", "pydantic", "tokenizers", "yaml"}
    code = f"import sys, initdiag.tokens; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_paths_without_a_folder_start_from_the_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("x.txt", b"0123456789")
    monkeypatch.chdir(tmp_path)
    settings = TokenSettings.model_validate({"source": "text", "path": "x.txt"})
    assert read(settings, vocab_size=256, length=4, seed=0).total == 10
    with pytest.raises(TokenError, match=r"^y\.txt: no such file$"):
        read(TokenSettings.model_validate({"source": "text", "path": "y.txt"}), vocab_size=256, length=4, seed=0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"batch": 65536, "length": 257},
            "tokens: B × T = 65,536 × 257 = 16,842,752 tokens, expected at most 16,777,216",
        ),
        ({"length": 0}, "tokens: V = 50257 and T = 0, expected both to be at least 1"),
        ({"vocab_size": 0}, "tokens: V = 0 and T = 8, expected both to be at least 1"),
        ({"source": "text"}, "tokens: source is text, but path is missing, expected the path of a file"),
        ({"source": "file"}, "tokens: source is file, but path is missing, expected the path of a file"),
        ({"source": "file", "path": ""}, "tokens: source is file, but path is missing, expected the path of a file"),
        ({"path": "x.bin"}, "tokens: path is 'x.bin', but source is random, expected source: text or file"),
        ({"path": ""}, "tokens: path is '', but source is random, expected source: text or file"),
        ({"tokenizer": "t.json"}, "tokens: tokenizer is 't.json', but source is random, expected source: text"),
        (
            {"source": "text", "path": "x.txt", "dtype": "uint16"},
            "tokens: dtype is 'uint16', but source is text, expected source: file",
        ),
        (
            {"source": "file", "path": "x.parquet"},
            "x.parquet: the suffix is '.parquet', expected .bin or .npy for tokens.source: file "
            "(for text, set tokens.source: text)",
        ),
        ({"source": "text", "path": "x\0y"}, r"'x\x00y': can't be the name of a file"),
        ({"source": "file", "path": "\0.bin"}, r"'\x00.bin': can't be the name of a file"),
    ],
)
def test_sentences(sentence: Sentence, arguments: dict[str, object], expected: str) -> None:
    assert sentence(**arguments) == expected


SOURCES = [("file", ".bin"), ("file", ".npy"), ("text", ".txt")]


@pytest.mark.parametrize(("source", "suffix"), SOURCES)
def test_missing_files(sentence: Sentence, source: str, suffix: str, tmp_path: Path) -> None:
    assert sentence(source=source, path=f"data/x{suffix}") == (
        f"data/x{suffix}: no such file (looked for {tmp_path}/data/x{suffix})"
    )


@pytest.mark.parametrize(("source", "suffix"), SOURCES)
def test_directories(sentence: Sentence, source: str, suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"x{suffix}").mkdir()
    assert sentence(source=source, path=f"x{suffix}") == f"x{suffix}: is a directory, expected a file"


@pytest.mark.parametrize(("source", "suffix"), SOURCES)
def test_pipes_do_not_block(sentence: Sentence, source: str, suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"x{suffix}")
    assert sentence(source=source, path=f"x{suffix}") == (f"x{suffix}: is a pipe or a device, expected a regular file")


@pytest.mark.parametrize(("source", "suffix"), SOURCES)
def test_permission_denied(
    sentence: Sentence, write: Write, source: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a patch, since root may read everything."""
    write(f"x{suffix}", b"0123456789")

    def refuse(path: Path, mode: str) -> BinaryIO:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert sentence(source=source, path=f"x{suffix}") == (
        f"x{suffix}: permission denied, expected a file that can be read"
    )


def test_a_file_as_a_directory(sentence: Sentence, write: Write) -> None:
    write("x.txt", b"0123456789")
    assert sentence(source="text", path="x.txt/y.txt") == "x.txt/y.txt: can't be read: Not a directory"


def test_a_name_that_is_too_long(sentence: Sentence) -> None:
    name = "x" * 5000
    assert sentence(source="text", path=name) == f"{name}: can't be read: File name too long"


def test_a_disk_that_fails(sentence: Sentence, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    write("x.txt", b"0123456789")
    monkeypatch.setattr("initdiag.tokens.stored.read_exactly", fail)
    assert sentence(source="text", path="x.txt") == "x.txt: can't be read: Input/output error"


def test_a_file_that_shrinks(write: Write, tmp_path: Path) -> None:
    write("x.txt", b"0123456789")
    with (
        pytest.raises(
            TokenError, match=r"^x\.txt: changed while it was read: found 2 bytes from byte 8 on, expected 9$"
        ),
        opening.opened(tmp_path / "x.txt", "x.txt") as (file, _),
    ):
        opening.read_exactly(file, 8, 9, "x.txt")
