"""Models whose steps are traced for the speed bar, a process each: `python -m benchmarks.programs.traced_models 7b`.

Sizes of the Llama-2 family (Touvron et al., 2023, and its model cards); weights are on the meta device, in bfloat16.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from stoker.perf import characterise

VOCABULARY = 32_000
SIZES = {"tiny": (2, 64, 4, 2, 128), "7b": (32, 4096, 32, 32, 11_008), "70b": (80, 8192, 64, 8, 28_672)}
"""Layers, width, heads, heads of keys, width of the feed-forward part."""


class Layer(nn.Module):
    """One decoder layer with rotary positions and gated feed-forward."""

    def __init__(self, width: int, heads: int, key_heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        keys = width // heads * key_heads
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, keys, bias=False), nn.Linear(width, keys, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Of (batch, tokens, width)."""
        y = self.before(x)

        def split(z: Tensor, heads: int) -> Tensor:
            return z.unflatten(-1, (heads, -1)).transpose(1, 2)

        def rotate(z: Tensor) -> Tensor:
            left, right = z.chunk(2, -1)
            return z * cos + torch.cat([-right, left], -1) * sin

        query, key = rotate(split(self.query(y), self.heads)), rotate(split(self.key(y), self.key_heads))
        value = split(self.value(y), self.key_heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.after(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A language model; gives its loss."""

    def __init__(self, layers: int, width: int, heads: int, key_heads: int, inner: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.table = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width, heads, key_heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Of (batch, tokens)."""
        x = self.table(tokens)
        rates = 10_000 ** (-torch.arange(self.head_dim, dtype=x.dtype) / self.head_dim)
        angles = torch.arange(tokens.shape[1], dtype=x.dtype)[:, None] * rates
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())


def main(name: str) -> None:
    """Traces one model; prints seconds and the process's largest memory in GB."""
    tokens = torch.randint(VOCABULARY, (1, 2048))
    if name == "lstm":
        model: nn.Module = nn.LSTM(512, 512, 2)
        inputs, loss = torch.empty(50, 64, 512), lambda out: out[0].sum()
    else:
        with torch.device("meta"):
            model = Decoder(*SIZES[name]).to(torch.bfloat16)
        inputs, loss = tokens, None
    begun_s = time.perf_counter()
    found = characterise(model, inputs, optimizer=torch.optim.AdamW, loss=loss)
    took_s = time.perf_counter() - begun_s
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"took_s": took_s, "peak_gb": peak_gb, "unknown": len(found.unknown)}))


if __name__ == "__main__":
    main(sys.argv[1])
