"""Numbers by name: whole or multiplied block by block, in any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from initdiag.weightless.normals import BLOCK, STRIPE, Normals

from .helpers import FAMILY, p_of_one_sample, vectors

# rows, width: of one block, of one and a bit, of stripes with a rest, of more rows than a block has entries
SHAPES = [
    (3, 5),
    (64, BLOCK // 64 + 1),
    (64, 3 * STRIPE // 64 + 17),
    (1, 2 * STRIPE + 3),
    (BLOCK // 16 + 1, 70),
    (0, 4),
    (4, 0),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_multiplied_they_are_the_same_numbers(shape: tuple[int, int], threads: int) -> None:
    rows, width = shape
    factor = vectors(2, rows, 0)
    whole = Normals(0, dtype=torch.float64)("name", rows, width)
    found = Normals(0, threads, torch.float64).times(factor, "name", width)
    assert whole.shape == shape
    torch.testing.assert_close(found, factor @ whole, rtol=1e-12, atol=1e-9)  # sums of up to 8e3 terms
    assert torch.equal(Normals(0, threads, torch.float64)("name", rows, width), whole)


def test_blocks_are_independent_normal_numbers() -> None:
    drawn = Normals(0, 2)("name", 64, 4 * STRIPE // 64)
    assert p_of_one_sample(drawn.flatten()[:: 2**6].double()) > FAMILY
    blocks = drawn.view(64, 8, -1).transpose(0, 1).reshape(8, -1).double()
    correlations = blocks @ blocks.T / blocks.shape[1] - torch.eye(8)
    assert float(correlations.abs().max()) < 6 * (2 / blocks.shape[1]) ** 0.5  # of 36; the diagonal's variance is 2/n


def of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_torch_has_as_many_threads_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for threads in (2, 8, 2, 8):  # one that starts late would set the default after the others
            normals = Normals(0, threads)
            normals.times(torch.ones(1, 64), "name", STRIPE // 16)
            assert {normals._pool.submit(torch.get_num_threads).result() for _ in range(threads)} == {1}
            assert (torch.get_num_threads(), of_a_new_thread()) == (3, 3)
        monkeypatch.setattr(torch, "mm", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Normals(0, 2).times(torch.ones(1, 64), "name", STRIPE // 16)
        assert (torch.get_num_threads(), of_a_new_thread()) == (3, 3)
    finally:
        torch.set_num_threads(before)


def test_in_inference_mode() -> None:
    """A forward may enter it by itself; threads of the pool don't."""
    factor = torch.ones(1, 64)
    expected = Normals(0, 2).times(factor, "name", STRIPE // 16)
    with torch.inference_mode():
        assert torch.equal(Normals(0, 2).times(factor, "name", STRIPE // 16), expected)
        assert Normals(0, 2)("name", 64, STRIPE // 16).shape == (64, STRIPE // 16)
