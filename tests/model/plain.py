"""The Transformer again, written another way: float64, one head at a time, complex rotations, explicit softmax.

Independent of initdiag.model: it shares with it nothing but the fields of the architecture and the names of the
weights. One sequence at a time; experts go token by token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from initdiag.model import Architecture
from tests.model.plain_positions import paper_sinusoids, slopes, turned
from tests.model.plain_tokens import Named, capped, experts, linear, mlp, norm

Head = tuple[Tensor, Tensor, Tensor]  # queries and keys (T, h), values (T, value_dim)


def logits(shape: Architecture, w: Named, ids: Tensor) -> Tensor:
    """Return (B, T, V) for ids (B, T)."""
    return torch.stack([_sequence(shape, w, row) for row in ids])


def _sequence(shape: Architecture, w: Named, ids: Tensor) -> Tensor:
    x = torch.stack([w["token_embedding.weight"][int(token)] for token in ids]) * shape.embedding_multiplier
    if shape.position == "learned":
        x = x + torch.stack([w["position_embedding.weight"][t + shape.position_offset] for t in range(len(ids))])
    if shape.position == "sinusoidal":
        x = x + paper_sinusoids(len(ids), shape.d_model)
    if shape.embedding_norm:
        x = norm(shape, w, "embedding_norm", x)
    for layer in range(shape.n_layers):
        x = block(shape, w, layer, x)
    if shape.final_norm:
        x = norm(shape, w, "final_norm", x)
    head = w["token_embedding.weight"] if shape.tied else w["head.weight"]
    y = torch.einsum("td,vd->tv", x, head)
    if shape.biases.head and not shape.tied:
        y = y + w["head.bias"]
    y = y * shape.logit_multiplier
    return y if shape.logit_softcap is None else capped(y, shape.logit_softcap)


def block(shape: Architecture, w: Named, layer: int, x: Tensor) -> Tensor:
    """One formula for each placement."""
    here = f"blocks.{layer}"
    c1, c2 = (of_branch(shape.stream_multiplier, layer, k) for k in (0, 1))

    def n1(y: Tensor) -> Tensor:
        return norm(shape, w, f"{here}.attention_norm", y)

    def n2(y: Tensor) -> Tensor:
        return norm(shape, w, f"{here}.mlp_norm", y)

    def f1(y: Tensor) -> Tensor:
        return ended(shape, w, layer, 0, attention(shape, w, layer, y))

    def f2(y: Tensor) -> Tensor:
        with_experts = shape.moe is not None and layer >= shape.moe.first_dense
        branch = experts(shape, w, f"{here}.mlp", y) if with_experts else mlp(shape, w, f"{here}.mlp", y)
        return ended(shape, w, layer, 1, branch)

    match shape.placement:
        case "pre" | "sandwich":
            x = c1 * x + f1(n1(x))
            return c2 * x + f2(n2(x))
        case "reordered" | "none":
            x = c1 * x + f1(x)
            return c2 * x + f2(x)
        case "post":
            x = n1(c1 * x + f1(x))
            return n2(c2 * x + f2(x))
        case "parallel":
            return c1 * x + f1(n1(x)) + f2(n2(x))
        case "parallel_shared":
            return c1 * x + f1(n1(x)) + f2(n1(x))


def of_branch(multiplier: float | tuple[float, ...], layer: int, k: int) -> float:
    """The multiplier of attention (k = 0) or MLP (k = 1) of a layer."""
    return multiplier[2 * layer + k] if isinstance(multiplier, tuple) else multiplier


def ended(shape: Architecture, w: Named, layer: int, k: int, y: Tensor) -> Tensor:
    """What happens to the result of a branch before it is added: a norm, a learned gain, a multiplier."""
    name = f"blocks.{layer}.{('attention', 'mlp')[k]}"
    if shape.placement in ("sandwich", "reordered"):
        y = norm(shape, w, f"{name}_post_norm", y)
    if shape.branch_gain != "none":
        y = y * w[f"{name}_gain.weight"].expand(shape.d_model)
    return y * of_branch(shape.residual_multiplier, layer, k)


def attention(shape: Architecture, w: Named, layer: int, x: Tensor) -> Tensor:
    name = f"blocks.{layer}.attention"
    heads = latent_heads(shape, w, layer, x) if shape.mla else plain_heads(shape, w, layer, x)
    ago = torch.tensor([[t - j for j in range(len(x))] for t in range(len(x))], dtype=torch.float64)
    window = window_of(shape, layer)
    seen = (ago >= 0) * (ago < (len(x) if window is None else window))  # 1 or 0, what a weight is multiplied by
    mixed = []
    for head, (q, k, v) in enumerate(heads):
        score = torch.einsum("th,jh->tj", q, k) * shape.attention_scale
        if shape.attention_softcap is not None:
            score = capped(score, shape.attention_softcap)
        if shape.position == "alibi":
            score = score - slopes(shape.n_heads)[head] * ago
        sink = w[f"{name}.mix.sinks.weight"][head].exp() if shape.attention_sinks else 0.0
        weight = score.exp() * seen  # small numbers: no maximum to subtract
        mixed.append(weight / (weight.sum(1, keepdim=True) + sink) @ v)
    out = torch.cat(mixed, dim=1)
    if shape.inner_norm:
        out = norm(shape, w, f"{name}.inner_norm", out)
    return linear(w, f"{name}.out", out, shape.biases.out)


def window_of(shape: Architecture, layer: int) -> int | None:
    return (shape.windows * shape.n_layers)[layer] if shape.windows else None


def positioned(shape: Architecture, layer: int, x: Tensor) -> Tensor:
    if shape.position != "rotary":
        return x
    if window_of(shape, layer) is not None and shape.local_rotary_base is not None:
        return turned(x, shape.local_rotary_base, None, shape.rotary_dims)
    return turned(x, shape.rotary_base, shape.rotary_scaling, shape.rotary_dims)


def plain_heads(shape: Architecture, w: Named, layer: int, x: Tensor) -> list[Head]:
    name, h, share = f"blocks.{layer}.attention", shape.head_dim, shape.n_heads // shape.n_kv_heads
    queries, keys, values = (linear(w, f"{name}.{part}", x, shape.biases.qkv) for part in ("query", "key", "value"))
    if shape.qk_norm == "full":
        queries, keys = norm(shape, w, f"{name}.query_norm", queries), norm(shape, w, f"{name}.key_norm", keys)
    heads = []
    for head in range(shape.n_heads):
        mine, theirs = slice(head * h, (head + 1) * h), slice(head // share * h, (head // share + 1) * h)
        q, k = queries[:, mine], keys[:, theirs]
        if shape.qk_norm == "per_head":
            q, k = norm(shape, w, f"{name}.query_norm", q), norm(shape, w, f"{name}.key_norm", k)
        heads.append((positioned(shape, layer, q), positioned(shape, layer, k), values[:, theirs]))
    return heads


def latent_heads(shape: Architecture, w: Named, layer: int, x: Tensor) -> list[Head]:
    """Multi-head latent attention: arXiv 2405.04434, equations 9 to 19, with norms on both latents."""
    assert shape.mla is not None
    name, mla, bias = f"blocks.{layer}.attention", shape.mla, shape.biases.qkv
    if mla.query_rank is None:
        queries = linear(w, f"{name}.query", x, bias)
    else:
        latent = norm(shape, w, f"{name}.query_norm", linear(w, f"{name}.query_down", x, bias))
        queries = linear(w, f"{name}.query", latent, bias=False)
    latent = norm(shape, w, f"{name}.latent_norm", linear(w, f"{name}.latent_down", x, bias))
    shared = positioned(shape, layer, linear(w, f"{name}.rotary_key", x, bias))  # (T, rope_dim), of all heads
    n, h, v = mla.nope_dim, mla.nope_dim + mla.rope_dim, mla.value_dim
    heads = []
    for head in range(shape.n_heads):
        q = queries[:, head * h : (head + 1) * h]
        key = torch.einsum("tc,nc->tn", latent, w[f"{name}.key.weight"][head * n : (head + 1) * n])
        value = torch.einsum("tc,vc->tv", latent, w[f"{name}.value.weight"][head * v : (head + 1) * v])
        q = torch.cat((q[:, :n], positioned(shape, layer, q[:, n:])), dim=1)
        heads.append((q, torch.cat((key, shared), dim=1), value))
    return heads
