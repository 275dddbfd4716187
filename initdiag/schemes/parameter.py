"""One parameter of a model, as a scheme is asked about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from initdiag.schemes.roles import Role


@dataclass(frozen=True)
class Part:
    """Rows of a packed matrix that have a role of their own; `rows` are (start, stop) pairs over its outputs."""

    role: Role
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model: known without building it, or read off the operations of a forward.

    `fan_in` is the number of inputs that one output sums over (of the matrix that a bias belongs to). `transposed`:
    it is stored (inputs, outputs), as in GPT-2's Conv1D. `parts`: the roles of its rows, where they differ (packed
    q/k/v, gate/up). `evidence` says in words how the role was found out.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: int
    layer: int | None = None
    transposed: bool = False
    parts: tuple[Part, ...] = ()
    evidence: str = ""

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def fan_out(self) -> int:
        """Outputs of one matrix: of (experts, outputs, inputs), of one expert; of a vector, its entries."""
        return self.shape[self.axis] if self.shape else 1

    @property
    def axis(self) -> int:
        """The axis of the outputs, from the end: the last of a vector and of (…, inputs, outputs), the first of a
        convolution (outputs, inputs, width, …), else the last but one."""
        if self.transposed or len(self.shape) < 2:
            return -1
        inputs = self.numel // self.shape[0] if self.shape[0] else 0
        convolution = len(self.shape) > 2 and self.fan_in == inputs != self.shape[-1]
        return -len(self.shape) if convolution else -2

    def alone(self, part: Part) -> Parameter:
        """Return rows of a packed matrix as a parameter of their own."""
        shape = list(self.shape)
        shape[self.axis] = sum(stop - start for start, stop in part.rows)
        return replace(self, shape=tuple(shape), role=part.role, parts=())

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts of a packed matrix, and at the end the rows that belong to none."""
        rest, end, outputs = [], 0, self.shape[self.axis]
        for start, stop in [*sorted(rows for part in self.parts for rows in part.rows), (outputs, outputs)]:
            if start > end:
                rest.append((end, start))
            end = max(end, stop)
        return (*self.parts, *([Part(self.role, tuple(rest))] if rest else []))
