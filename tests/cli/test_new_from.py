"""initdiag new FILE --from NAME, and settings of a scheme that nobody named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from initdiag.case import module_case
from initdiag.config import load
from initdiag.config.starter import write_starter
from initdiag.errors import UsageError
from initdiag.request import Request
from initdiag.schemes import scheme_named
from initdiag.subjects import Subject


def test_a_copy_is_the_shipped_config(tmp_path: Path) -> None:
    write_starter(tmp_path / "mine.yaml", copied="pythia-160m")
    assert load(str(tmp_path / "mine.yaml")).config == load("pythia-160m").config
    assert "$schema=file://" in (tmp_path / "mine.yaml").read_text().splitlines()[0]
    with pytest.raises(UsageError, match=r"no shipped config 'pythia-160'.*did you mean 'pythia-160m'"):
        write_starter(tmp_path / "other.yaml", copied="pythia-160")
    assert not (tmp_path / "other.yaml").exists()


@pytest.mark.parametrize("override", ["init.std=0.5", "init={scheme: wang}", "init.scheme=wang", "init.roles.bias=1"])
def test_settings_of_a_scheme_that_nobody_named_are_refused(override: str) -> None:
    from torch import nn

    subject: Any = Subject(nn.Linear(2, 2), vocab_size=2, name="mine")
    with pytest.raises(UsageError, match="mine draws its own weights; give a --scheme"):
        module_case(subject, Request(overrides=(override,)))
    module_case(subject, Request(overrides=("init.seed=3",)))


def test_part_of_a_name_suggests_all_that_have_it() -> None:
    with pytest.raises(UsageError, match="did you mean one of olmo-mitchell, olmo-full-megatron, olmo-normal"):
        scheme_named("OLMo")
    with pytest.raises(UsageError, match="did you mean 'nanogpt'"):
        scheme_named("nanoGPT")
