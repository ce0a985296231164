"""Decoders of published rows: MPT, as llm-foundry defines it (scripts/train/yamls/pretrain/mpt-*.yaml)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stoker.perf.study.workloads.mpt import VOCABULARY, Shape


class _Block(nn.Module):
    """Attention and MLP, without biases.

    The Triton kernel of attention that the published rows ran computes the whole square, even if a causal mask
    hides half of it.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Input and output: (batch, tokens, width)."""
        joined = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class MPT(nn.Module):
    """The language model; returns its loss.

    Args:
        shape: width, heads and layers.
        seq_len: tokens.
    """

    def __init__(self, shape: Shape, seq_len: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, shape.width), nn.Embedding(seq_len, shape.width)
        self.blocks = nn.ModuleList(_Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Input: (batch, tokens)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(scores.flatten(0, 1).float(), tokens.flatten())
