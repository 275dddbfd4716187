"""Positions of the plain implementation: sinusoids, rotations of complex numbers, slopes of ALiBi."""

from __future__ import annotations

import cmath
import math

import torch
from torch import Tensor

from initdiag.model.sections import RotaryScaling


def paper_sinusoids(length: int, width: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(…): arXiv 1706.03762, section 3.5."""
    table = torch.zeros(length, width, dtype=torch.float64)
    for position in range(length):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            table[position, 2 * i], table[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def turned(x: Tensor, base: float = 10_000, scaling: RotaryScaling | None = None, dims: int | None = None) -> Tensor:
    """Rotary positions of x (T, h): z_j · exp(i·t·speed_j) of z_j = x_j + i·x_(j + dims/2); the rest stays."""
    dims = x.shape[1] if dims is None else dims
    half = dims // 2
    z = torch.complex(x[:, :half], x[:, half:dims])
    speed = speeds(dims, base, scaling)
    turn = [[cmath.exp(1j * t * speed[j]) for j in range(half)] for t in range(len(x))]
    z = z * torch.tensor(turn, dtype=torch.complex128)
    return torch.cat((z.real, z.imag, x[:, dims:]), dim=1)


def speeds(dims: int, base: float, scaling: RotaryScaling | None = None) -> list[float]:
    """Radians a token of every pair of features: base^(−2j/dims), slowed down by the scaling."""
    unscaled = [base ** (-2 * j / dims) for j in range(dims // 2)]
    if scaling is None:
        return unscaled
    if scaling.kind == "linear":
        return [speed / scaling.factor for speed in unscaled]
    if scaling.kind == "llama3":
        return [llama3_speed(speed, scaling) for speed in unscaled]
    return yarn_speeds(unscaled, dims, base, scaling)


def llama3_speed(speed: float, scaling: RotaryScaling) -> float:
    """The three cases of Llama 3.1 by the wavelength, as its reference code tells them apart."""
    assert scaling.context is not None
    wavelength = 2 * math.pi / speed
    if wavelength < scaling.context / scaling.high:
        return speed
    if wavelength > scaling.context / scaling.low:
        return speed / scaling.factor
    smooth = (scaling.context / wavelength - scaling.low) / (scaling.high - scaling.low)
    return (1 - smooth) * speed / scaling.factor + smooth * speed


def yarn_speeds(unscaled: list[float], dims: int, base: float, scaling: RotaryScaling) -> list[float]:
    """θ' = (1 − γ)·θ/s + γ·θ: arXiv 2309.00071, section 3.2, γ as in deepseek-ai/DeepSeek-V3, inference/model.py.

    There γ falls from 1 to 0 with the number of the pair, between the pairs that turn beta_fast (`high`) and beta_slow
    (`low`) times within the old context; gpt-oss takes the same borders without rounding them.
    """
    context = scaling.context
    assert context is not None

    def correction_dim(rotations: float) -> float:
        return dims * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = correction_dim(scaling.high), correction_dim(scaling.low)
    if scaling.rounded:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    assert low < high, "a test of YaRN needs pairs that turn often enough"
    slowed = []
    for j, speed in enumerate(unscaled):
        if j <= low:
            gamma = 1.0
        elif j >= high:
            gamma = 0.0
        else:
            gamma = (high - j) / (high - low)
        slowed.append((1 - gamma) * speed / scaling.factor + gamma * speed)
    return slowed


def slopes(heads: int) -> list[float]:
    """The slopes of ALiBi as its authors' get_slopes makes them (arXiv 2108.12409, section 3; their repository)."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return slopes(closest) + slopes(2 * closest)[0::2][: heads - closest]
