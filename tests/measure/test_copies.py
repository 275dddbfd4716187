"""Copies are found wherever they hide, and nothing that is equal by design or by chance is called one."""

from __future__ import annotations

import copy
import math
import time

import pytest
import torch
from torch import Tensor, nn

from initdiag.measure import Copy
from initdiag.measure.copies import find_copies
from initdiag.schemes import Role
from tests.small_models import drawn, normals, subject

BY_NAME = {
    "emb": Role.TOKEN_EMBEDDING,
    "pos": Role.POSITION_EMBEDDING,
    "up": Role.MLP_IN,
    "down": Role.MLP_OUT,
    "gain": Role.NORM_SCALE,
    "scale": Role.MULTIPLIER,
    "bias": Role.BIAS,
    "head": Role.LM_HEAD,
    "qkv": Role.ATTENTION_QUERY,
    "experts": Role.MLP_IN,
    "A_log": Role.OTHER,
}


def found(**tensors: Tensor | nn.Parameter) -> tuple[Copy, ...]:
    """Look for copies in a module of these parameters; digits at the end of a name are dropped to find the role."""
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_parameter(name, tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor))
    roles = {name: BY_NAME[key] for name in tensors if (key := name.rstrip("0123456789")) in BY_NAME}
    return find_copies(module, roles)


def matrix(seed: int = 0, rows: int = 64, columns: int = 48) -> Tensor:
    return 0.02 * normals(rows, columns, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_equal_tensors_are_each_a_copy_of_the_first(dtype: torch.dtype) -> None:
    x = matrix().to(dtype)
    assert found(up0=x, up1=x.clone(), down=matrix(1).to(dtype), up2=x.clone()) == (
        Copy("up0", "up1", "equal"),
        Copy("up0", "up2", "equal"),
    )


def test_one_entry_of_difference_is_no_equality_but_a_correlation() -> None:
    big, other = matrix(rows=700, columns=300), matrix(rows=700, columns=300)
    other[333, 222] += 1  # the digest, which reads a part, may not see it
    (pair,) = found(up0=big, up1=other)
    assert pair.kind == "scaled"


def test_a_deep_copied_block() -> None:
    module = drawn(subject("gpt2"))
    module.blocks[2] = copy.deepcopy(module.blocks[0])
    roles = {entry.parameter.name: entry.parameter.role for entry in subject("gpt2").plan.entries}
    pairs = find_copies(module, roles)
    matrices = [name for name, parameter in module.blocks[0].named_parameters() if parameter.dim() > 1]
    assert {pair.second for pair in pairs} == {f"blocks.2.{name}" for name in matrices}
    assert {pair.kind for pair in pairs} == {"equal"}
    module.blocks[2] = module.blocks[0]  # the same memory: layers shared on purpose
    assert find_copies(module, roles) == ()


def test_random_biases_count_and_constant_ones_do_not() -> None:
    assert found(bias0=normals(32), bias1=normals(32)) == (Copy("bias0", "bias1", "equal"),)
    assert found(bias0=torch.zeros(32), bias1=torch.zeros(32)) == ()


@pytest.mark.parametrize("value", [0.0, 1.0, 0.02])
def test_constants_are_no_copies(value: float) -> None:
    full = torch.full((32, 32), value)
    assert found(up0=full, up1=full.clone(), gain0=torch.ones(32), gain1=torch.ones(32)) == ()


def test_what_no_chance_went_into_is_equal_by_design() -> None:
    ramp = torch.arange(1.0, 17).log().expand(64, 16).clone()  # SSM
    assert found(A_log0=ramp, A_log1=ramp.clone(), up0=ramp.clone(), up1=ramp.clone()) == ()
    assert found(A_log0=ramp[0].repeat(3), A_log1=ramp[0].repeat(3)) == ()
    assert found(up0=torch.eye(32), up1=torch.eye(32)) == ()
    assert found(scale0=normals(32), scale1=normals(32), gain0=normals(32), gain1=normals(32)) == ()
    angles = torch.arange(64.0)[:, None] * 10_000 ** -(torch.arange(16.0) / 16)
    table = torch.cat([angles.sin(), angles.cos()], 1)
    frozen = [nn.Parameter(table.clone(), requires_grad=False) for _ in range(2)]
    assert found(pos0=frozen[0], pos1=frozen[1]) == ()


def test_shared_memory_is_no_copy() -> None:
    x = matrix()
    tied = nn.Parameter(x)
    assert found(emb=tied, head=tied) == ()
    assert found(emb=nn.Parameter(x), head=nn.Parameter(x)) == ()  # two Parameters over one storage
    assert found(emb=nn.Parameter(x), head=nn.Parameter(x.clone())) == (Copy("emb", "head", "equal"),)


def test_lora_pairs_and_their_zero_halves() -> None:
    assert found(up0=matrix(0), up1=matrix(1), down0=torch.zeros(48, 64), down1=torch.zeros(48, 64)) == ()


def test_matrices_without_a_role_are_judged_and_vectors_are_not() -> None:
    assert found(unknown0=matrix(), unknown1=matrix()) == (Copy("unknown0", "unknown1", "equal"),)
    assert found(unknown0=normals(64), unknown1=normals(64)) == ()


def test_experts_slice_by_slice() -> None:
    experts, others = normals(6, 32, 16), normals(6, 32, 16, seed=1)
    experts[4] = experts[1]
    others[2] = experts[0]
    assert set(found(experts0=experts, experts1=others)) == {
        Copy("experts0[1]", "experts0[4]", "equal"),
        Copy("experts0[0]", "experts1[2]", "equal"),
    }


def test_all_experts_equal_and_whole_copies_are_told_once() -> None:
    upcycled = normals(32, 16).expand(4, 32, 16).clone()
    assert len(found(experts=upcycled)) == 3
    whole = normals(4, 32, 16)
    assert found(experts0=whole, experts1=whole.clone()) == (Copy("experts0", "experts1", "equal"),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_repeated_rows(parts: int, dtype: torch.dtype) -> None:
    block = matrix(rows=32).to(dtype)
    assert found(qkv=torch.cat([block] * parts)) == (Copy("qkv[0:32]", "qkv[32:64]", "rows"),)
    assert found(qkv=torch.cat([block] * parts).t().contiguous()) == (Copy("qkv[:, 0:32]", "qkv[:, 32:64]", "rows"),)


def test_blocks_of_any_size_at_any_place() -> None:
    query, key = matrix(rows=64), matrix(1, rows=16)
    assert found(qkv=torch.cat([query, key, key])) == (Copy("qkv[64:80]", "qkv[80:96]", "rows"),)
    assert found(qkv=torch.cat([key, query, key])) == (Copy("qkv[0:16]", "qkv[80:96]", "rows"),)
    assert found(qkv=torch.cat([query, key, -key])) == ()


def test_rows_inside_an_expert() -> None:
    experts = normals(3, 32, 16)
    experts[1, 16:] = experts[1, :16]
    assert found(experts=experts) == (Copy("experts[1][0:16]", "experts[1][16:32]", "rows"),)


@pytest.mark.parametrize("column", range(48))
def test_rows_that_all_differ_in_one_entry_are_no_copies(column: int) -> None:
    block = matrix(rows=32)
    other = block.clone()
    other[:, column] += 1e-3
    assert found(qkv=torch.cat([block, other])) == ()
    other[:12] = block[:12]
    assert found(qkv=torch.cat([block, other])) == (Copy("qkv[0:12]", "qkv[32:44]", "rows"),)


def test_padding_rows() -> None:
    table = matrix(rows=100)
    zeros, mean = torch.zeros(28, 48), table.mean(0).expand(28, 48)
    nearly = mean + 1e-5 * normals(28, 48)
    for padding in (zeros, mean, nearly, table[:5]):
        assert found(emb=torch.cat([table, padding])) == ()
    assert found(qkv=torch.cat([matrix(rows=64), zeros])) == ()
    assert found(emb=torch.cat([table, table])) == (Copy("emb[0:100]", "emb[100:200]", "rows"),)


@pytest.mark.parametrize("factor", [0.5, -2.0, 0.204])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_copies(factor: float, dtype: torch.dtype) -> None:
    (pair,) = found(up0=matrix().to(dtype), up1=matrix(1).to(dtype), up2=(factor * matrix()).to(dtype))
    assert (pair.first, pair.second, pair.kind) == ("up0", "up2", "scaled")
    assert pair.factor == pytest.approx(factor, rel=1e-2 if dtype is torch.bfloat16 else 1e-5)


def test_a_copy_with_noise_and_an_expert_scaled() -> None:
    (pair,) = found(up0=matrix(), up1=matrix() + matrix(1))
    assert pair.factor == pytest.approx(1.0, abs=5 / math.sqrt(64 * 48))
    experts = normals(4, 32, 16)
    experts[3] = 0.1 * experts[0]
    (pair,) = found(experts=experts)
    assert (pair.first, pair.second, round(pair.factor, 5)) == ("experts[0]", "experts[3]", 0.1)


def test_a_correlation_must_hold_for_all_entries() -> None:
    """A correlation of the sample alone, 0.4 for the signs where 6/√1024 = 0.19 is the limit, is not enough."""
    x, y = matrix(rows=1024, columns=200), matrix(1, rows=1024, columns=200)
    flat, other = x.view(-1), y.view(-1)
    step = math.ceil(x.numel() / 1024) | 1
    other[::step] += 0.8 * flat[::step]
    assert found(up0=x, up1=y) == ()


def test_huge_entries_in_the_same_place_are_no_copy() -> None:
    x, y = matrix(), matrix(1)
    x[5, 5] = y[5, 5] = 10.0  # 97 % of both variances
    assert found(up0=x, up1=y) == ()


def test_means_are_no_correlation() -> None:
    assert found(up0=1 + matrix(), up1=1 + matrix(1)) == ()


def test_many_tensors_take_linear_time() -> None:
    def seconds(count: int) -> float:
        module = nn.ParameterList([0.02 * normals(64, 64, seed=seed) for seed in range(count)])
        start = time.process_time()
        assert find_copies(module, {}) == ()
        return time.process_time() - start

    seconds(10)
    assert seconds(400) < 9 * seconds(100)  # 4 for linear, 16 for pair by pair
