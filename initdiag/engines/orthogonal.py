"""Random orthogonal matrices, from normal ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def matrices(tensor: Tensor) -> Sequence[Tensor]:
    """Return the views of a contiguous tensor that are orthogonal each for itself, (m, n).

    Of (experts, m, n) these are the experts; of a kernel with four axes or more, as in `nn.init.orthogonal_`, all axes
    but the first are one. Trailing axes of size 1 don't count: those of a convolution of width 1.
    """
    while tensor.dim() > 2 and tensor.shape[-1] == 1:
        tensor = tensor.squeeze(-1)
    if tensor.dim() == 3:
        return tensor.unbind(0)
    return (tensor.flatten(1),) if tensor.numel() else ()


def orthogonal_(z: Tensor, gain: float) -> Tensor:
    """Turn independent N(0, 1) entries (m, n), in place, into gain times a matrix whose rows or columns, whichever are
    fewer, are orthonormal; it is uniformly distributed (Haar).

    Q of a QR decomposition is that only if R's diagonal is positive (Mezzadri 2007, arXiv:math-ph/0609050), which
    LAPACK doesn't promise.
    """
    wide = z.shape[0] < z.shape[1]
    q, r = torch.linalg.qr(z.T if wide else z)
    q *= torch.where(r.diagonal() < 0, -gain, gain)
    return z.copy_(q.T if wide else q)
