"""What a caller asks for besides the targets: the arguments that check, compare and plan share."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any

from initdiag.errors import UsageError, require_type

if TYPE_CHECKING:
    from initdiag.engines import Settings

Progress = Callable[[str], None]
Path = str | os.PathLike[str]


def blocks_told(progress: Progress | None, stage: str) -> Callable[[int, int], None]:
    """Return what tells of each block of a model, (i, n), where somebody looks on: a Progress that is `live`."""
    if progress is None or not getattr(progress, "live", False):
        return lambda *_: None
    return lambda at, of: progress(f"{stage}, block {at} of {of}")


@dataclass(frozen=True)
class Request:
    """See `initdiag.check` for what each means; None is "not given".

    Raises:
        UsageError: an argument of a wrong type, or two that exclude one another.
    """

    scheme: str | None = None
    seed: int | None = None
    overrides: Sequence[str] = ()
    text: Path | None = None
    tokens: Path | None = None
    tokenizer: Path | None = None
    settings: Settings | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    vocab_size: int | None = None
    causal: bool | None = None
    trust_remote_code: bool = False
    backward: bool = False
    expect: Path | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        from initdiag.engines import Settings

        require_type("settings", self.settings, (Settings, NoneType), "initdiag.Settings(...)")
        require_type("overrides", self.overrides, (list, tuple), 'a list such as ["init.std=0.01"]')
        for override in self.overrides:
            require_type("overrides", override, (str,), 'strings such as "init.std=0.01"')
        require_type("seed", self.seed, (int, NoneType), "a whole number")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise UsageError(f"seed {self.seed}: expected at least 0 and less than 2**63")
        require_type("scheme", self.scheme, (str, NoneType), "the name of a scheme")
        for name, value in (("text", self.text), ("tokens", self.tokens), ("tokenizer", self.tokenizer)):
            require_type(name, value, (str, os.PathLike, NoneType), "the name of a file")
        if self.text is not None and self.tokens is not None:
            text, tokens = os.fspath(self.text), os.fspath(self.tokens)
            raise UsageError(f"both a text ({text}) and a token file ({tokens}); expected one of them")
        require_type("kwargs", self.kwargs, (Mapping,), 'a mapping such as {"n_layer": 6}')
        require_type("vocab_size", self.vocab_size, (int, NoneType), "a whole number")
        if self.vocab_size is not None and self.vocab_size < 1:
            raise UsageError(f"vocab_size {self.vocab_size}: expected at least 1")
        require_type("causal", self.causal, (bool, NoneType), "True or False")
        require_type("trust_remote_code", self.trust_remote_code, (bool,), "True or False")
        require_type("backward", self.backward, (bool,), "True or False")
        require_type(
            "expect", self.expect, (str, os.PathLike, Mapping, NoneType), "a config file, a shipped config or a mapping"
        )

    @property
    def of_the_model(self) -> tuple[str, ...]:
        """The options that say which model a module target is, as they are typed."""
        given = shlex.quote(json.dumps(dict(self.kwargs), default=str)) if self.kwargs else ""
        return (
            *((f"--kwargs {given}",) if given else ()),
            *((f"--vocab-size {self.vocab_size}",) if self.vocab_size is not None else ()),
            *(("--trust-remote-code",) if self.trust_remote_code else ()),
        )

    @property
    def run_settings(self) -> Settings:
        from initdiag.engines import Settings

        return self.settings or Settings()
