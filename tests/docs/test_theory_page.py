"""docs/theory.md names code, papers and figures that exist, and all papers that the theory's code cites."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import plots
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
CODE = sorted((ROOT / "initdiag" / "theory").glob("*.py"))
MODULES = {path.stem for path in CODE} - {"__init__"}
NAMES = sorted(set(re.findall(r"`([a-z_]+)\.([A-Za-z_]+)`", PAGE)))
FIGURES = re.findall(r"!\[([^\]]*)\]\(images/([^)]*)\.svg\)", PAGE)
ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")
LARGEST = 60_000  # bytes of a figure: a page is to load at once


def test_there_are_names_to_look_up() -> None:
    """Each module of the theory is named with a function at least once, but for the door of measured runs."""
    assert {module for module, _ in NAMES} == MODULES - {"expect"}


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_named_functions_exist(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(f"initdiag.theory.{module}"), name)


def test_named_files_exist() -> None:
    named = set(re.findall(r"`(?:python )?([a-z]+/[\w/]+(?:\.py|/))", PAGE))
    assert {"docs/plots.py", "initdiag/theory/"} < named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_papers_that_the_code_cites_are_on_the_page() -> None:
    cited = {paper for path in CODE for paper in ARXIV.findall(path.read_text(encoding="utf-8"))}
    assert cited
    assert cited - set(ARXIV.findall(PAGE)) == set()


def test_arxiv_numbers_are_called_so() -> None:
    assert len(ARXIV.findall(PAGE)) == len(re.findall(r"arXiv\s+\d{4}\.\d{5}\b", PAGE))


def test_the_script_draws_what_the_page_shows() -> None:
    assert [name for _, name in FIGURES] == list(plots.FIGURES)
    assert {path.stem for path in plots.IMAGES.glob("*.svg")} == set(plots.FIGURES)


@pytest.mark.parametrize(("told", "name"), FIGURES)
def test_figures_are_small_svg_with_words_for_those_who_cannot_see_them(told: str, name: str) -> None:
    text = (plots.IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.find(".//{http://www.w3.org/2000/svg}path") is not None
    assert len(text.encode()) < LARGEST
    assert "<dc:date>" not in text  # the same numbers give the same bytes
    assert len(told.split()) > 5


def test_colours_are_those_of_the_schemes_shown() -> None:
    drawn = (plots.IMAGES / "theory-stream.svg").read_text(encoding="utf-8")
    assert all(colour in drawn for colour in plots.SCHEMES.values())
