"""Runs the program in this process, as the tests of its commands do."""

from tests.cli.conftest import initdiag as program

__all__ = ["program"]
