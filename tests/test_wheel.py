"""What is installed is what was tested: a wheel holds the package, the configs and the types marker."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_finds_its_configs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert (site / "initdiag" / "py.typed").exists()
    assert (site / "initdiag" / "configs" / "initdiag.schema.json").exists()
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import initdiag\n"
        f"assert initdiag.__file__.startswith({str(site)!r})\n"
        "from initdiag.cli.entry import main; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "check", "tiny", "-q"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "verdict: PASS" in ran.stdout
