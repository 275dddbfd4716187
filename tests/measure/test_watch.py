"""Numbers that are taken while a forward runs, against closed forms and hooks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from initdiag.measure.watch import Watch, token_share
from initdiag.trace import Tracer
from tests.small_models import normals


@pytest.mark.parametrize("sequences", [2, 3, 8])
@pytest.mark.parametrize("shared", [0.0, 0.5, 3.0])
def test_token_share_is_the_share_that_differs(sequences: int, shared: float) -> None:
    """x = own + shared·common, both unit normal: the share is 1/(1 + shared²). With n = B·T·d entries its relative
    standard error is about √(2/((B − 1)·T·d)) for the own part and √(2/(T·d)) for the common one: 5 of each."""
    own, common = normals(sequences, 64, 64), normals(1, 64, 64, seed=1)
    error = 5 * math.sqrt(2 / ((sequences - 1) * 64 * 64)) + 5 * math.sqrt(2 / (64 * 64))
    assert token_share(own + shared * common) == pytest.approx(1 / (1 + shared**2), rel=error)


def test_token_share_of_what_is_alike_or_alone() -> None:
    assert token_share(normals(1, 8, 4).expand(3, 8, 4)) < 1e-12  # float32 takes a mean of equal numbers to 1e-7
    assert math.isnan(token_share(normals(1, 8, 4))) and math.isnan(token_share(normals(8, 4)))
    assert token_share(1e-25 * normals(2, 32, 32)) == pytest.approx(token_share(normals(2, 32, 32)), rel=1e-4)


class Two(nn.Module):
    """A branch that reads a norm of gain 3, and one that reads the stream; a router; a sum of two branches."""

    def __init__(self, add: str = "+") -> None:
        super().__init__()
        self.table, self.norm, self.add = nn.Embedding(50, 16), nn.LayerNorm(16), add
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 50)
        with torch.no_grad():
            self.norm.weight.fill_(3.0)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        branch = self.down(torch.relu(self.up(self.norm(x))))
        self.seen = (x.clone(), branch.clone())
        match self.add:
            case "+":
                x = x + branch
            case "+=":
                x += branch
            case "alpha":
                x = torch.add(x, branch, alpha=0.5)
            case "lerp":
                x = torch.lerp(x, branch, 0.25)
            case "addcmul":
                x = torch.addcmul(x, branch, torch.full_like(branch, 2.0))
            case "-":
                x = x - branch
        self.after = x.clone()
        return self.head(x)


@pytest.mark.parametrize(
    ("add", "kept", "factor"),
    [("+", 1, 1), ("+=", 1, 1), ("alpha", 1, 0.5), ("lerp", 0.75, 0.25), ("addcmul", 1, 2.0), ("-", 1, 1)],
)
def test_every_way_to_add(add: str, kept: float, factor: float) -> None:
    torch.manual_seed(0)
    module, ids, watch = Two(add), torch.randint(50, (2, 7)), Watch()
    with torch.no_grad(), Tracer(module, ids, callbacks=watch.callbacks):
        module(ids)
    (branch,) = watch.branches
    stream, written = module.seen
    assert branch.branch_variance == pytest.approx(float((factor * written).double().var(correction=0)), rel=1e-5)
    assert branch.stream_variance == pytest.approx(float(module.after.double().var(correction=0)), rel=1e-5)
    assert watch.embedding_variance == pytest.approx(float(stream.double().var(correction=0)), rel=1e-5)
    assert branch.keep == pytest.approx(kept)
    assert branch.residue < 1e-6 and branch.projection == "down.weight" and branch.name == "down"
    (read,) = branch.reads
    normed = 3 * torch.nn.functional.layer_norm(stream, (16,))
    assert (read.reader, read.normed, read.gain) == ("up.weight", True, "norm.weight")
    assert read.rms == pytest.approx(float(normed.square().mean().sqrt()), rel=1e-5)
    assert branch.source is not None and branch.source.startswith("tests/measure/test_watch.py:")
