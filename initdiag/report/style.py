"""What a renderer has to know of the place where its text will be read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """width: columns, or None to take what the text needs (a pipe, a file). ascii: nothing beyond ASCII."""

    width: int | None = None
    color: bool = False
    ascii: bool = False

    def text(self, words: str) -> str:
        """Spell out what an ASCII terminal can't show."""
        if not self.ascii:
            return words
        for sign, spelled in _SPELLED.items():
            words = words.replace(sign, spelled)
        return words.encode("ascii", "replace").decode()


_SPELLED = {
    "×": "x",
    "±": "+/-",
    "√": "sqrt ",
    "σ": "sigma",
    "Σ": "sum of",
    "−": "-",
    "–": "-",
    "·": "*",
    "…": "...",
    "²": "^2",
    "½": "1/2",
    "’": "'",
    "‖": "|",
    "→": "->",
}
