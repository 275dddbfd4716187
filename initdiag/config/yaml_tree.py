"""YAML text to a tree of nodes: PyYAML's events, with everything refused that a config doesn't need.

The tree is built from events, as PyYAML's own composer recurses as deep as the text asks it to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from initdiag.config.wording import AT_ITS_START, one_line, syntax_sentence
from initdiag.errors import ConfigError, Location, Problem

MAX_DEPTH = 50  # a config needs 4; Python's own stack ends near 1000


@dataclass
class Node:
    """A scalar (`text`, None for the others), a sequence (`items`) or a mapping (`pairs`)."""

    location: Location
    kind: str
    text: str = ""
    quoted: bool = False
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    complete: bool = False


def stop(message: str, location: Location | None) -> ConfigError:
    return ConfigError([Problem(message, "", location)])


def root(text: str, file: str) -> Node | None:
    """Return the tree of the only document, None where there is no document."""
    events = _events(text, file)
    found: Node | None = None
    anchors: dict[str, Node] = {}
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            if found is not None:
                raise stop("found a second document, expected one", _location(event.start_mark, file))
            found = _node(next(events), events, file, anchors, depth=0)
    return found


def _events(text: str, file: str) -> Iterator[yaml.Event]:
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_event():
            event: yaml.Event = loader.get_event()  # type: ignore[no-untyped-call]
            yield event
    except yaml.MarkedYAMLError as error:
        marks = [error.problem_mark, error.context_mark]
        mark = next(filter(None, reversed(marks) if error.problem in AT_ITS_START else marks), None)
        message = syntax_sentence(error.problem, error.context)
        raise stop(message, _location(mark, file) if mark else Location(file, 1, 1)) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position].splitlines(keepends=True) or [""]
        at_start = before[-1].endswith(("\n", "\r"))
        line, column = (len(before) + 1, 1) if at_start else (len(before), len(before[-1]) + 1)
        message = f"found the control character {one_line(repr(text[error.position]))}, expected text"
        raise stop(message, Location(file, line, column)) from None
    except (ValueError, OverflowError, IndexError):
        # PyYAML lets Python's errors through for a few texts, such as "\UFFFFFFFF" and a huge %YAML version
        place = _location(loader.get_mark(), file) if loader else Location(file, 1, 1)
        raise stop("not valid YAML: found an escape or a number that stands for nothing", place) from None


def _node(event: yaml.Event, events: Iterator[yaml.Event], file: str, anchors: dict[str, Node], depth: int) -> Node:
    location = _location(event.start_mark, file)
    if depth > MAX_DEPTH:
        raise stop(f"found more than {MAX_DEPTH} levels of nesting, expected at most 4", location)
    if isinstance(event, yaml.AliasEvent):
        name = event.anchor or ""
        if name not in anchors:
            raise stop(f"found the alias '*{one_line(name)}', expected an anchor of that name before it", location)
        if not anchors[name].complete:
            raise stop(f"found the alias '*{one_line(name)}' inside its own anchor, expected no cycle", location)
        return anchors[name]
    if not isinstance(event, yaml.ScalarEvent | yaml.SequenceStartEvent | yaml.MappingStartEvent):
        raise AssertionError(f"PyYAML put {event!r} where a value belongs")
    if event.tag is not None:
        tag = one_line(event.tag.replace("tag:yaml.org,2002:", "!!"))
        raise stop(f"found the tag '{tag}', expected a value without a tag", location)
    node = Node(location, "scalar")
    if event.anchor is not None:
        anchors[event.anchor] = node
    if isinstance(event, yaml.ScalarEvent):
        node.text, node.quoted = event.value, event.style is not None
    elif isinstance(event, yaml.SequenceStartEvent):
        node.kind = "list"
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            node.items.append(_node(event, events, file, anchors, depth + 1))
    else:
        node.kind = "mapping"
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = _node(event, events, file, anchors, depth + 1)
            node.pairs.append((key, _node(next(events), events, file, anchors, depth + 1)))
    node.complete = True
    return node


def _location(mark: Any, file: str) -> Location:
    return Location(file, mark.line + 1, mark.column + 1)
