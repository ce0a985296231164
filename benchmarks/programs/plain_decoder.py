"""A decoder of plain torch operations with its own AdamW: the program of published allocation traces, written again.

Vocabulary 10,000, width 1024, 24 blocks, 16 heads, inner 4096, batch 4, no biases. Arguments: context, and ``bf16`` for
autocast.
"""

from __future__ import annotations

import contextlib
import math
import sys

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, BLOCKS, HEADS, INNER, BATCH = 10_000, 1024, 24, 16, 4096, 4


class Linear(nn.Module):
    """A product without a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        """The output, as wide as the model says."""
        return torch.einsum("...i,oi->...o", x, self.weight)


class Norm(nn.Module):
    """RMSNorm, computed in float32."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """The output, as wide as the model says."""
        kind = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return (x * scale * self.weight).to(kind)


class Rotary(nn.Module):
    """Rotary positions of a head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(context).float(), 10_000 ** (-torch.arange(0, width, 2).float() / width))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The output, as wide as the model says."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        first, second = x[..., 0::2], x[..., 1::2]
        return torch.cat((cos * first - sin * second, sin * first + cos * second), dim=-1)


class Attention(nn.Module):
    """Causal attention, written out."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.query, self.key, self.value = (Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.rotary = Linear(WIDTH, WIDTH), rotary

    def forward(self, x: Tensor) -> Tensor:
        """The output, as wide as the model says."""
        rows, length, _ = x.shape
        heads = [
            layer(x).view(rows, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        query, key = self.rotary(heads[0]), self.rotary(heads[1])
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(WIDTH // HEADS)
        scores = torch.where(mask, scores, float("-inf"))
        exponents = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        weights = exponents / exponents.sum(dim=-1, keepdim=True)
        mixed = torch.einsum("...qk,...kd->...qd", weights, heads[2])
        return self.out(mixed.transpose(1, 2).contiguous().view(rows, length, WIDTH))


class FeedForward(nn.Module):
    """An MLP with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(WIDTH, INNER), Linear(INNER, WIDTH), Linear(WIDTH, INNER)

    def forward(self, x: Tensor) -> Tensor:
        """The output, as wide as the model says."""
        inner = self.w1(x)
        return self.w2(inner * torch.sigmoid(inner) * self.w3(x))


class DecoderBlock(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(WIDTH), Attention(rotary)
        self.norm2, self.feed = Norm(WIDTH), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        """The output, as wide as the model says."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    """All blocks between embedding and output layer."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, WIDTH))
        rotary = Rotary(WIDTH // HEADS, context)
        self.blocks = nn.ModuleList([DecoderBlock(rotary) for _ in range(BLOCKS)])
        self.norm, self.head = Norm(WIDTH), Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """The output, as wide as the model says."""
        x = self.embedding[tokens]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class OwnAdamW(torch.optim.Optimizer):
    """AdamW out of place, parameter by parameter."""

    def __init__(self, parameters: object, lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01})  # type: ignore[arg-type]

    def step(self, closure: object = None) -> None:
        """Updates all parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, grad = self.state[p], p.grad.data
                t = state.get("t", 1)
                m, v = state.get("m", torch.zeros_like(p.data)), state.get("v", torch.zeros_like(p.data))
                b1, b2 = group["betas"]
                rate = group["lr"] * math.sqrt(1 - b2**t) / (1 - b1**t)
                p.data -= group["lr"] * group["weight_decay"] * p.data
                m = b1 * m + (1 - b1) * grad
                v = b2 * v + (1 - b2) * grad**2
                p.data -= rate * m / (torch.sqrt(v) + group["eps"])
                state["t"], state["m"], state["v"] = t + 1, m, v


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of the softmax, written out."""
    x = x - x.max(dim=-1, keepdim=True).values
    return x - torch.log(torch.exp(x).sum(dim=-1, keepdim=True))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of the negative logarithms."""
    return (-log_softmax(logits)).gather(-1, targets.unsqueeze(-1)).mean()


def main(context: int, half: bool) -> None:
    """Trains for five steps."""
    model = Decoder(context).to("cuda")
    optimizer = OwnAdamW(model.parameters())
    tokens = torch.randint(0, VOCABULARY, (BATCH, context), device="cuda")
    targets = torch.randint(0, VOCABULARY, (BATCH, context), device="cuda")
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16) if half else contextlib.nullcontext():
            logits = model(tokens)
            loss = loss_of(logits, targets)
        loss.backward()
        optimizer.step()
        del logits, loss


if __name__ == "__main__":
    main(int(sys.argv[1]), "bf16" in sys.argv[2:])
