"""Docs say what the code says: generated parts, shown commands, links."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import blocks
import console
import pytest

import initdiag
from benchmarks.fault_models import TWINS
from benchmarks.trap_models import TRAPS
from initdiag.config import preset_names
from initdiag.config.annotations import sections
from initdiag.config.presets import ALIASES
from initdiag.report import Run
from initdiag.report.branches import branch_table
from initdiag.report.facts import FACTS
from initdiag.report.header import PLACEMENTS
from initdiag.report.weights import weight_columns
from initdiag.rules import RULES
from initdiag.schemes import SCHEMES, Role
from tests.docs.shown import PAGES, ROOT, SHOWN, assert_shown, ran


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, "-m", "cogapp", "--check", "-I", "docs", *map(str, PAGES)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"run `make docs`\n{ran.stdout}{ran.stderr}"


OF_GPT2 = ("configs/gpt2.yaml", "compare --schemes")  # theirs is in test_gpt2_numbers.py
OTHERS = [(page, block) for page, block in SHOWN if not any(words in block.command for words in OF_GPT2)]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), OTHERS, ids=[block.command for _, block in OTHERS])
def test_shown_output_is_real(page: Path, block: console.Shown) -> None:
    assert_shown(block, ran(block.command).out, page)


def test_the_readme_shows_what_people_will_see_first() -> None:
    commands = [block.command for block in console.shown(ROOT / "README.md")]
    assert commands == [
        "initdiag check configs/gpt2.yaml",
        "initdiag check configs/gpt2.yaml --scheme default",
        "initdiag compare --schemes gpt2,scaled,wang,olmo-mitchell",
        "initdiag predict gpt2 --scheme gpt2 --vary n_layers=6,12,24,48,96",
        "initdiag check docs/examples/gpt.py:copied",
        "initdiag check docs/examples/gpt.py:unscaled --expect docs/examples/gpt.yaml",
    ]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page: lower case, no punctuation, hyphens for spaces."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.replace("\\", "").lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            to = page.parent / target if target else page
            assert to.exists(), target
            assert not anchor or anchor in anchors(to), f"{target}#{anchor}"


def headings(page: str, level: str = "##") -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [line.removeprefix(f"{level} ") for line in text.splitlines() if line.startswith(f"{level} ")]


def test_every_rule_has_its_place() -> None:
    assert headings("rules.md") == list(RULES)


def test_every_scheme_has_its_place() -> None:
    by_hand = headings("schemes.md")
    by_hand = by_hand[: by_hand.index("All schemes") + 1]
    families = list(dict.fromkeys(scheme.family for scheme in SCHEMES.values()))
    in_order = [scheme.name for family in families for scheme in SCHEMES.values() if scheme.family == family]
    assert headings("schemes.md")[len(by_hand) :] == in_order


def test_every_model_has_its_place() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "models.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [*preset_names(), *ALIASES]


def test_every_section_of_a_config_has_its_place() -> None:
    """All roles have the same section, which is shown once."""
    of_roles = {name for name, _ in sections(nested=True) if name.startswith("init.roles.")}
    shown = {*headings("configuration.md"), *headings("configuration.md", "###"), "init.roles.mlp_out"}
    assert shown - {"Formulas"} == {name for name, _ in sections(nested=True)} - of_roles | {"init.roles.mlp_out"}
    keys = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE))
    for name, section in sections(nested=True):
        assert keys >= set(section.model_fields), name


def test_the_readme_counts_what_is_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"**{len(SCHEMES)} init schemes**" in readme
    assert f"**{len(list((ROOT / 'configs').glob('*.yaml')))} models**" in readme


def test_console_leaves_out_what_the_page_leaves_out() -> None:
    fresh = "a 1\nb 2\nc 3\nd 4\ne 5\nf 6\n"
    assert console.fitted(fresh, "a 9\n[…]\nc 0\n[…]\ne 0.5\nold\n") == "a 1\n[…]\nc 3\n[…]\ne 5\nf 6\n"
    assert console.fitted(fresh, "x\n") == fresh == console.fitted(fresh, "")
    with pytest.raises(RuntimeError, match="no line"):
        console.fitted(fresh, "a 1\n[…]\ngone\n")


def test_console_runs_what_the_tests_run() -> None:
    assert console.run("initdiag scheme scaled") == ran("initdiag scheme scaled").out


def test_console_shows_no_program_that_broke() -> None:
    with pytest.raises(RuntimeError, match=r"exit code 2\s.*no-such"):
        console.run("initdiag check no-such.yaml")


# --- concepts.md: everything that is printed has its definition


CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()
DEFINITIONS = CONCEPTS.split("<!-- [[[end]]] -->")[1]


def defined(word: str) -> bool:
    """Whether a heading has the word in it, or it stands in bold, where the definitions are."""
    heading = rf"^## .*{re.escape(word)}.*$"
    return f"**{word}**" in DEFINITIONS or bool(re.search(heading, DEFINITIONS, re.IGNORECASE | re.MULTILINE))


def test_every_number_has_its_definition() -> None:
    for fact in FACTS:
        assert f"| {fact.key.replace('|', chr(92) + '|')} |" in CONCEPTS
        assert defined(fact.key) or defined(re.sub(r" over ln V|, min|, max", "", fact.key)), fact.key


@pytest.fixture(scope="module")
def run() -> Run:
    return initdiag.check(str(ROOT / "docs" / "examples" / "gpt.py:GPT"), backward=True).run


def test_every_column_has_its_definition(run: Run) -> None:
    columns = [*branch_table(run).columns, *weight_columns(run)]
    assert len(columns) > 15, "most of the columns of both tables"
    for heading in [*(column.heading for column in columns), "expected", "planned", "growth"]:
        assert defined(heading), heading


def test_every_role_placement_and_kind_of_history_has_its_place() -> None:
    rows = re.findall(r"^\| ([\w, ]+) \|", DEFINITIONS.split("\n## Roles\n")[1].split("\n## ")[0], re.MULTILINE)
    assert sorted(role for row in rows if row != "role" for role in row.split(", ")) == sorted(Role)
    for placement, words in PLACEMENTS.items():
        assert f"| {words} |" in DEFINITIONS
        assert f'`"{placement}"`' in DEFINITIONS
    for words in ("seen to fill", "never written", "left to PyTorch's defaults", "changed again by a second call"):
        assert f"*{words}*" in DEFINITIONS


# --- faults.md: the detection matrix


FAULTS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "faults.md").read_text().splitlines()
    if re.match(r"\| [KT]\d", line)
]


def test_every_fault_and_design_is_in_the_matrix() -> None:
    rows = {row[0]: row[1:] for row in FAULTS}
    assert list(rows) == [*TWINS, *TRAPS], "run `python docs/blocks.py`"
    for name, twin in TWINS.items():
        assert rows[name][0] in twin.rules, name
        assert rows[name][2] == "silent", name
    assert {rows[name][0] for name in TRAPS} == {"none"}
    kinds = {int(name[1:].split()[0]) for name in rows if name.startswith("K")}
    assert kinds == {*range(1, 25)} - {22}, "K22 is a law over several widths"
    assert {int(name[1:].split()[0]) for name in rows if name.startswith("T")} == {*range(1, 31)}


def test_rows_of_the_matrix_are_real() -> None:
    names = ("K5 a copy times 0.5", "K12 a skip is missing", "T15 gains stored as w of 1 + w")
    fresh = [line for line in blocks.faults(names).splitlines() if re.match(r"\| [KT]\d", line)]
    assert len(fresh) == len(names)
    assert all(line in (ROOT / "docs" / "faults.md").read_text().splitlines() for line in fresh), fresh


# --- modules.md: what it promises


def test_examples_are_what_the_pages_say() -> None:
    gpt = runpy.run_path(str(ROOT / "docs" / "examples" / "gpt.py"))
    initdiag.assert_healthy(gpt["GPT"])
    with pytest.raises(AssertionError, match="INIT003"):
        initdiag.assert_healthy(gpt["copied"])
    waived = initdiag.assert_healthy(gpt["copied"], overrides=["gate.ignore=[INIT003]"]).run
    off = abs(waived.measured.loss.value - waived.expected.loss)
    assert off < waived.expected.allowance, "README.md: the loss is what it should be (five standard deviations)"
