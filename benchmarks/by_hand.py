"""The least script that a person would write instead of `initdiag check configs/gpt2.yaml`: build GPT-2 small without
torch's own init, draw every weight once, one forward on 2 × 256 random tokens, one cross-entropy. It measures
nothing else. The baseline of overhead.py."""

import torch
import torch.nn.functional as F

V, CONTEXT, D, N, HEADS, B, T, STD = 50257, 1024, 768, 12, 12, 2, 256, 0.02
RESIDUAL = STD / (2 * N) ** 0.5
torch.manual_seed(0)


def normal(*shape, std=STD):
    return torch.empty(shape).normal_(0, std)


wte, wpe = normal(V, D), normal(CONTEXT, D)
blocks = [
    (normal(3 * D, D), normal(D, D, std=RESIDUAL), normal(4 * D, D), normal(D, 4 * D, std=RESIDUAL)) for _ in range(N)
]
tokens = torch.randint(V, (B, T + 1))

with torch.no_grad():
    x = F.embedding(tokens[:, :-1], wte) + wpe[:T]
    for qkv, out, up, down in blocks:
        q, k, v = F.linear(F.layer_norm(x, (D,)), qkv).view(B, T, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), out)
        x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (D,)), up), approximate="tanh"), down)
    logits = F.layer_norm(x, (D,)) @ wte.T
    print(F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item())
