"""Settings of the whole suite."""

from __future__ import annotations

import os

import pytest

if os.environ.get("PYTEST_XDIST_WORKER"):  # before torch is imported: workers that share cores spin on each other's
    os.environ.setdefault("OMP_NUM_THREADS", "1")


LONG = ("cli", "zoo")  # folders whose files take a minute or more altogether


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no worker is left with one of them in the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.parent.name not in LONG))  # stable
