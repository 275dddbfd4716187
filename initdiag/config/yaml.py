"""YAML text to plain Python values, with the line and column of every key.

PyYAML scans and parses; what its events mean is decided here. Its own loaders follow YAML 1.1 (`2e-2` is a string,
`on` is true, `010` is 8), keep the last of two equal keys, and recurse as deep as the text asks them to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from initdiag.config.wording import dotted, found
from initdiag.config.yaml_tree import MAX_DEPTH, Node, root, stop
from initdiag.errors import ConfigError, Location, Place, Problem

Path = tuple[str | int, ...]

MAX_NODES = 10_000  # aliases of aliases can make a few lines stand for billions of values
MAX_DIGITS = 300  # a float ends near 1e308, and Python refuses to convert integers beyond 4300 digits

_NULL = re.compile(r"null|Null|NULL|~|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = re.compile(r"\.(nan|NaN|NAN)")


@dataclass(frozen=True)
class Document:
    """A YAML mapping as plain values.

    `locations` has, for every path such as ("init", "std") or ("gate", "ignore", 0), the place of its key or list
    entry; the path () is the start of the file.
    """

    value: dict[str, Any]
    locations: Mapping[Path, Location]


def parse(text: str, file: str) -> Document:
    """Read a text that holds one YAML mapping.

    Raises:
        ConfigError: the text is no YAML, has anything in it that a config doesn't need (tags, several documents, keys
            that aren't strings, keys that occur twice, control characters, endless aliases), or is no mapping.
    """
    value, locations = _read(text, file)
    if not isinstance(value, dict):
        what = "an empty file" if value is None else found(value).removeprefix("found ")
        raise ConfigError([Problem(f"found {what}, expected a mapping (lines of 'key: value')", "", locations[()])])
    return Document(value, locations)


def parse_value(text: str) -> Any:
    """Read one YAML value of any kind, such as the right-hand side of an override; nothing at all is None.

    Raises:
        ConfigError: as in `parse`; only the messages of its problems mean something, there is no file to point into.
    """
    return _read(text, "")[0]


def resolve(text: str) -> str | int | float | bool | None:
    """Return what an unquoted scalar means in the core schema of YAML 1.2.

    Raises:
        ValueError: an integer of more than 300 digits.
    """
    if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"found a number of {len(text)} digits, expected at most {MAX_DIGITS}")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITY.fullmatch(text) or _NAN.fullmatch(text):
        return float(text.replace(".", ""))
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    return None if _NULL.fullmatch(text) else text


def _read(text: str, file: str) -> tuple[Any, dict[Path, Location]]:
    builder = _Builder(file)
    builder.locations[()] = Location(file, 1, 1)
    node = root(text, file)
    value = None if node is None else builder.build(node, (), depth=0)
    if builder.problems:
        once: dict[tuple[Place | None, str], Problem] = {}  # an alias repeats the problems of its anchor
        for problem in builder.problems:
            once.setdefault((problem.location, problem.message), problem)
        raise ConfigError(once.values())
    return value, builder.locations


@dataclass
class _Builder:
    """Turns nodes into values; notes every location, and every problem that doesn't stop it."""

    file: str
    locations: dict[Path, Location] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    count: int = 0

    def build(self, node: Node, path: Path, depth: int) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise stop(f"found more than {MAX_NODES} values (aliases written out), expected a config", node.location)
        if depth > MAX_DEPTH:
            message = f"found more than {MAX_DEPTH} levels of nesting (aliases written out), expected at most 4"
            raise stop(message, node.location)
        if node.kind == "mapping":
            return self._mapping(node, path, depth)
        if node.kind == "list":
            items = []
            for index, item in enumerate(node.items):
                self.locations[*path, index] = item.location
                items.append(self.build(item, (*path, index), depth + 1))
            return items
        return self._scalar(node, path)

    def _scalar(self, node: Node, path: Path) -> Any:
        if node.quoted:
            if any("\ud800" <= character <= "\udfff" for character in node.text):
                message = "found an escape for half a character (a surrogate), expected text"
                self.problems.append(Problem(message, dotted(path), node.location))
            return node.text
        try:
            return resolve(node.text)
        except ValueError as error:
            self.problems.append(Problem(str(error), dotted(path), node.location))
            return None

    def _mapping(self, node: Node, path: Path, depth: int) -> dict[str, Any]:
        first: dict[str, Location] = {}
        pairs: list[tuple[str, Node, Node]] = []
        merged: list[Node] = []
        for key_node, value_node in node.pairs:
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in first:
                message = f"found twice, first on line {first[key].line}; expected once"
                self.problems.append(Problem(message, dotted((*path, key)), key_node.location))
                continue
            first[key] = key_node.location
            if key == "<<" and not key_node.quoted:
                merged += self._merged(value_node, path)
            else:
                pairs.append((key, key_node, value_node))
        value: dict[str, Any] = {}
        for source in reversed(merged):  # the first of the list wins over the next, and what is written here over all
            value |= self.build(source, path, depth + 1)
        for key, key_node, value_node in pairs:
            self.locations[*path, key] = key_node.location
            value[key] = self.build(value_node, (*path, key), depth + 1)
        return value

    def _key(self, node: Node, path: Path) -> str | None:
        key = None if node.kind != "scalar" else self._scalar(node, path)
        if isinstance(key, str):
            return key
        what = f"found a {node.kind} as a key" if node.kind != "scalar" else f"{found(key)} as a key"
        self.problems.append(Problem(f"{what}, expected a name", dotted(path), node.location))
        return None

    def _merged(self, node: Node, path: Path) -> list[Node]:
        sources = node.items if node.kind == "list" else [node]
        if all(source.kind == "mapping" for source in sources):
            return sources
        message = "found '<<' with something else than mappings, expected an alias of a mapping, such as *base"
        self.problems.append(Problem(message, dotted(path), node.location))
        return []
