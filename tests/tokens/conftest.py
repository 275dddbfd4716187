"""Helpers of the token tests: reading with settings given as keywords, and token files written with struct."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from initdiag.config.schema import TokenSettings
from initdiag.errors import TokenError
from initdiag.tokens import TokenBatch, read


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., TokenBatch]:
    """read() with settings as keywords; paths are relative to tmp_path."""

    def call(*, vocab_size: int = 50257, length: int = 8, seed: int = 0, **settings: Any) -> TokenBatch:
        return read(TokenSettings(**settings), vocab_size=vocab_size, length=length, seed=seed, folder=tmp_path)

    return call


@pytest.fixture
def sentence(load: Callable[..., TokenBatch]) -> Callable[..., str]:
    """The message of the TokenError that the same call raises; always one line."""

    def call(**arguments: Any) -> str:
        with pytest.raises(TokenError) as caught:
            load(**arguments)
        message = str(caught.value)
        assert "\n" not in message
        return message

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., bytes]:
    """Write bytes, or ids of a struct code, behind an optional llm.c header [magic, version, count]."""

    def call(
        name: str, content: bytes | Sequence[int], code: str = "H", header: tuple[int, int, int] | None = None
    ) -> bytes:
        data = content if isinstance(content, bytes) else struct.pack(f"<{len(content)}{code}", *content)
        if header is not None:
            data = struct.pack("<256i", *header, *[0] * 253) + data
        (tmp_path / name).write_bytes(data)
        return data

    return call
