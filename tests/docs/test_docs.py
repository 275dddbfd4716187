"""Docs say what the code says: generated parts, shown commands, links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import console
import pytest

from initdiag.report.facts import FACTS
from initdiag.rules import RULES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, "-m", "cogapp", "--check", "-I", "docs", *map(str, PAGES)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"run `make docs`\n{ran.stdout}{ran.stderr}"


SHOWN = [(page, block) for page in PAGES for block in console.shown(page)]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), SHOWN, ids=[block.command for _, block in SHOWN])
def test_shown_output_is_real(page: Path, block: console.Shown) -> None:
    """Words are the same; numbers to 1e-3, since another machine's kernels add floats in another order."""
    fresh = console.fitted(console.run(block.command), block.output)
    assert re.sub(r"[▏▎▍▌▋▊▉█▁▂▃▄▅▆▇]+", "", NUMBER.sub("0", fresh)).split() == (
        re.sub(r"[▏▎▍▌▋▊▉█▁▂▃▄▅▆▇]+", "", NUMBER.sub("0", block.output)).split()
    ), f"run `make docs` for {page.name}"
    for new, old in zip(NUMBER.findall(fresh), NUMBER.findall(block.output), strict=True):
        assert float(new.replace(",", "")) == pytest.approx(float(old.replace(",", "")), rel=1e-3, abs=1e-6), (
            block.command
        )


def test_the_readme_shows_what_people_will_see_first() -> None:
    commands = [block.command for block in console.shown(ROOT / "README.md")]
    assert commands == [
        "initdiag check configs/gpt2.yaml",
        "initdiag check configs/gpt2.yaml --scheme default",
        "initdiag compare --schemes default,gpt2,scaled",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_rule_and_number_has_its_place() -> None:
    rules, concepts = (ROOT / "docs" / "rules.md").read_text(), (ROOT / "docs" / "concepts.md").read_text()
    assert [line[3:] for line in rules.splitlines() if line.startswith("## ")] == list(RULES)
    for fact in FACTS:
        assert f"| {fact.key.replace('|', chr(92) + '|')} |" in concepts
        word = fact.key.removesuffix(" over ln V").removesuffix(", min").removesuffix(", max")
        assert re.search(re.escape(word), concepts.split("<!-- [[[end]]] -->")[1], re.IGNORECASE), fact.key
