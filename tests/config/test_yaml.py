"""The YAML reader: YAML 1.2 scalars, places of keys, and one sentence for whatever it refuses."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from initdiag.config.yaml import parse, parse_value, resolve
from initdiag.errors import ConfigError


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-2", 0.02), ("1e-5", 1e-5), (".5", 0.5), ("+1.0", 1.0), ("1.", 1.0), ("-3", -3), ("+3", 3),
        ("0x1F", 31), ("0o17", 15), ("010", 10), ("1E3", 1000.0),
        ("true", True), ("TRUE", True), ("False", False),
        ("null", None), ("~", None), ("", None),
        ("on", "on"), ("yes", "yes"), ("12:30:45", "12:30:45"), ("2001-01-01", "2001-01-01"), ("1_000", "1_000"),
        ("'12'", "12"), ('"true"', "true"), ("'~'", "~"), ("0b1", "0b1"), ("tRUE", "tRUE"), ("1e", "1e"),
        ("٣", "٣"), ("-0x1", "-0x1"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse(f"a: {text}\n", "f.yaml").value["a"]
    assert found == value
    assert type(found) is type(value)


def test_infinities_and_nan_are_numbers() -> None:
    assert parse_value("[.inf, -.INF]") == [float("inf"), float("-inf")]
    assert parse_value(".nan") != parse_value(".nan")


def test_every_key_and_entry_has_its_place() -> None:
    document = parse("# first\nmodel:\n  'd_model': 8\n  ? n\n  : 1\nlist: [a,\n  b]\n", "x/f.yaml")
    places = {path: str(location) for path, location in document.locations.items()}
    assert places == {
        (): "x/f.yaml:1:1",
        ("model",): "x/f.yaml:2:1",
        ("model", "d_model"): "x/f.yaml:3:3",
        ("model", "n"): "x/f.yaml:4:5",
        ("list",): "x/f.yaml:6:1",
        ("list", 0): "x/f.yaml:6:8",
        ("list", 1): "x/f.yaml:7:3",
    }


def test_aliases_and_merge_keys() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: *a\nd:\n  x: 5\n  <<: [*a, *b]\n"
    document = parse(text, "f.yaml")
    assert document.value["c"] == {"x": 1, "y": 2}
    assert document.value["d"] == {"x": 5, "y": 2, "z": 4}, "what is written wins, then the first merged"
    assert {key: document.locations["d", key].line for key in "xyz"} == {"x": 5, "y": 1, "z": 2}
    assert parse("'<<': 1", "f.yaml").value == {"<<": 1}


def test_a_byte_order_mark_is_no_column() -> None:
    assert parse("\ufeffa: 1", "f.yaml").locations["a",].column == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml:1:1: found an empty file, expected a mapping (lines of 'key: value')"),
        ("# only a comment\n", "f.yaml:1:1: found an empty file, expected a mapping (lines of 'key: value')"),
        ("- a\n", "f.yaml:1:1: found ['a'] (a list), expected a mapping (lines of 'key: value')"),
        ("word", "f.yaml:1:1: found 'word' (a string), expected a mapping (lines of 'key: value')"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: found a second document, expected one"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: found a tab, expected spaces"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: found twice, first on line 1; expected once"),
        ("a: &x {k: 1, k: 2}\nb: *x\n", "f.yaml:1:14: a.k: found twice, first on line 1; expected once"),
        ("a: &x [*x]", "f.yaml:1:8: found the alias '*x' inside its own anchor, expected no cycle"),
        ("a: *x", "f.yaml:1:4: found the alias '*x', expected an anchor of that name before it"),
        ("a: !!python/name:os.system x",
         "f.yaml:1:4: found the tag '!!python/name:os.system', expected a value without a tag"),
        ("a: !x 1", "f.yaml:1:4: found the tag '!x', expected a value without a tag"),
        ("a:\n  1: 2", "f.yaml:2:3: a: found 1 (a whole number) as a key, expected a name"),
        ("true: 2", "f.yaml:1:1: found true (a boolean) as a key, expected a name"),
        ("? [a]\n: 1", "f.yaml:1:3: found a list as a key, expected a name"),
        ("a: \0", "f.yaml:1:4: found the control character '\\x00', expected text"),
        ("a: 1\r\nb: \x07", "f.yaml:2:4: found the control character '\\x07', expected text"),
        ("a: 1\n\x07", "f.yaml:2:1: found the control character '\\x07', expected text"),
        ('a: "\\ud800"', "f.yaml:1:4: a: found an escape for half a character (a surrogate), expected text"),
        ('a: "\\U00110000"', "f.yaml:1:7: not valid YAML: found an escape or a number that stands for nothing"),
        ("a: 'x\nb: 1\n", "f.yaml:1:4: found a quote that is never closed"),
        ("a: [1, 2\n", "f.yaml:1:4: found a '[' that is never closed"),
        ("a: {b: 2\n", "f.yaml:1:4: found a '{' that is never closed"),
        ("a: 1\nb\nc: 2\n", "f.yaml:2:1: found a line without ':', expected 'key: value'"),
        ("a:\n  b: 1\n c: 2",
         "f.yaml:3:2: found an indentation that fits no line above, expected keys of one section in one column"),
        ("a: b: c",
         "f.yaml:1:5: found a ':' that can't stand here, expected one 'key: value' a line and quotes around "
         "text that holds ': '"),
        ("a: @x", "f.yaml:1:4: found '@' at the start of a value, expected quotes around it"),
        ("a: 'b' c", "f.yaml:1:8: found text that belongs to nothing before it, expected 'key: value'"),
        ("a: {<<: 1}",
         "f.yaml:1:9: a: found '<<' with something else than mappings, expected an alias of a mapping, such as *base"),
        ("a: " + "9" * 301, "f.yaml:1:4: a: found a number of 301 digits, expected at most 300"),
    ],
)  # fmt: skip
def test_what_is_refused_is_said_in_one_sentence(text: str, message: str) -> None:
    assert refusal(text) == message


def test_problems_that_do_not_stop_the_reader_come_together() -> None:
    assert refusal("a: 1\na: 2\n3: 4\n").splitlines() == [
        "f.yaml:2:1: a: found twice, first on line 1; expected once",
        "f.yaml:3:1: found 3 (a whole number) as a key, expected a name",
    ]


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "- " * 5000, "? " * 5000, "a:\n" + " [" * 100])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "found more than 50 levels of nesting, expected at most 4" in refusal(text)


def bomb(link: str) -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {link % ', '.join([f'*a{n - 1}'] * 9)}" for n in range(1, 20)]
    return "\n".join(lines)


@pytest.mark.parametrize("link", ["[%s]", "{<<: [%s]}"])
def test_alias_bombs_are_refused_soon(link: str) -> None:
    start = time.perf_counter()
    assert "found more than 10000 values (aliases written out), expected a config" in refusal(bomb(link))
    assert time.perf_counter() - start < 5, "9**19 values would take for ever; 10,000 take some 20 ms"


def test_a_chain_of_aliases_is_not_deeper_than_nesting() -> None:
    chain = "\n".join(["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 80)])
    assert "found more than 50 levels of nesting (aliases written out), expected at most 4" in refusal(chain)


SNIPPETS = [
    "a", ": ", "\n", "  ", "- ", "[", "]", "{", "}", ", ", "&x ", "*x", "!!int ", "!", "'", '"', "\\U00110000", "#",
    "|", ">", "%YAML 1.1\n", "---\n", "...\n", "? ", "<<: ", "\t", "1e3", "\0", "\x85", "@", "~", "0x", "\ud800",
]  # fmt: skip


@given(st.text() | st.lists(st.sampled_from(SNIPPETS), max_size=30).map("".join))
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    try:
        document = parse(text, "f.yaml")
    except ConfigError as error:
        assert all(problem.location is not None and len(str(problem)) < 400 for problem in error.problems)
        assert all("\n" not in str(problem) for problem in error.problems)
    else:
        assert isinstance(document.value, dict)


def means_itself(text: str) -> bool:
    """Whether YAML 1.1, in which PyYAML writes, and 1.2 agree that this is a string (1e3, 0o7 aren't)."""
    try:
        return resolve(text) == text
    except ValueError:
        return False


strings = st.text(st.characters(exclude_categories=["Cs"])).filter(means_itself)
scalars = st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False) | strings
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4), max_leaves=20
)


@given(st.dictionaries(strings, values, max_size=5))
def test_what_pyyaml_writes_is_read_back(value: dict[str, Any]) -> None:
    document = parse(pyyaml.dump(value), "f.yaml") if value else None
    assert document is None or document.value == value


@pytest.mark.parametrize(("text", "value"), [("", None), ("[A, B]", ["A", "B"]), ("1e-2", 0.01), ("{a: 1}", {"a": 1})])
def test_single_values(text: str, value: object) -> None:
    assert parse_value(text) == value
