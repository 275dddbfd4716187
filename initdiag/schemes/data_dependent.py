"""Schemes that look at data: the drawn weights are rescaled on a batch (initdiag.engines.calibrate)."""

from __future__ import annotations

from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

LSUV = Scheme(
    name="lsuv",
    family="Data-dependent",
    summary="orthogonal matrices, each then divided by the std of what it computes on the batch, in order",
    source="ducha-aiki/LSUV-pytorch LSUV.py; arXiv 1511.06422, algorithm 1",
    roles={
        **PLAIN,
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("orthogonal", "1")),
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "embedding_std")),
    },
    parameters={"embedding_std": "d_model ** (-tied / 2)"},
    depth="grows like N: every branch is made to add a variance of about 1",
    notes=(
        "In the order of the forward pass, the std of a matrix' outputs over batch, tokens and features is measured; "
        "where it is off 1 by more than 0.1, the matrix is divided by it. With biases of 0 one division is exact, "
        "where LSUV.py tries up to ten times.",
        "The plan of a run says what the weights are after that; `initdiag plan` shows them before.",
        "LSUV knows linear layers and convolutions only: embeddings are not touched, nor is a head tied to one. They "
        "are N(1) here, and N(1 / sqrt(d_model)) where the head is tied.",
        "Experts have a factor each, by the tokens that reach them; one that no token reaches stays as it is.",
        "It needs real weights: the weightless engine doesn't run it.",
    ),
    calibration="lsuv",
)

DATA_DEPENDENT_SCHEMES = (LSUV,)
