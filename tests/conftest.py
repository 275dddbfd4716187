"""Settings of the whole suite."""

from __future__ import annotations

import os

if os.environ.get("PYTEST_XDIST_WORKER"):  # before torch is imported: workers that share cores spin on each other's
    os.environ.setdefault("OMP_NUM_THREADS", "1")
