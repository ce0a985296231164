# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch leaves parts of its signatures untyped)
"""Stacks of attention: BERT, encoder-decoders for translation and text, Transformer-XL.

Attention is written out (products, softmax, dropout), as these programs ran it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    """Attention of several heads, with a projection for each of query, key, value and output."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of x (batch, tokens, width) to memory; the mask is added to the scores."""
        query, key, value = self._split(self.query(x)), self._split(self.key(memory)), self._split(self.value(memory))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores + mask
        found = F.dropout(scores.softmax(-1), self.dropout, self.training) @ value
        return self.output(found.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Attention, attention to an encoder if there is one, and two dense layers; norms after or before each."""

    def __init__(
        self, width: int, heads: int, inner: int, *, cross: bool = False, gelu: bool = True, before: bool = False
    ) -> None:
        super().__init__()
        self.before, self.gelu, self.dropout = before, gelu, 0.1
        self.own = MultiHeadAttention(width, heads, 0.1)
        self.cross = MultiHeadAttention(width, heads, 0.1) if cross else None
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None) -> Tensor:
        """The block's output for x (batch, tokens, width)."""
        normed = self._ahead(0, x)
        x = self._joined(0, x, self.own(normed, normed, mask))
        if self.cross is not None and memory is not None:
            x = self._joined(1, x, self.cross(self._ahead(1, x), memory, None))
        hidden = self.wide(self._ahead(-1, x))
        return self._joined(-1, x, self.narrow(F.gelu(hidden) if self.gelu else F.relu(hidden)))

    def _ahead(self, number: int, x: Tensor) -> Tensor:
        return self.norms[number](x) if self.before else x

    def _joined(self, number: int, x: Tensor, found: Tensor) -> Tensor:
        x = x + F.dropout(found, self.dropout, self.training)
        return x if self.before else self.norms[number](x)


class Bert(nn.Module):
    """BERT (arXiv 1810.04805) without its head: embeddings, encoder, and the pooler that it runs even if unused."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions, self.segments = nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def encode(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (batch, tokens, width) and the pooled first one."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.positions(places) + self.segments(segments))
        x = F.dropout(x, 0.1, self.training)
        added = (1.0 - mask.to(x.dtype))[:, None, None] * -10_000.0
        for block in self.blocks:
            x = block(x, added)
        return x, torch.tanh(self.pooler(x[:, 0]))


class BertForAnswers(Bert):
    """BERT that marks where an answer starts and ends (SQuAD)."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 30_522) -> None:
        super().__init__(layers, width, heads, vocabulary)
        self.ends = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Mean cross-entropy of the two positions."""
        first, last = self.ends(self.encode(tokens, segments, mask)[0]).unbind(-1)
        return (F.cross_entropy(first, start) + F.cross_entropy(last, end)) / 2


class BertForPretraining(Bert):
    """BERT that fills in masked words, predicted only where there are some, and says whether sentences follow."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 30_528) -> None:
        super().__init__(layers, width, heads, vocabulary)
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.follows = nn.Linear(width, 2)

    def forward(
        self, tokens: Tensor, segments: Tensor, mask: Tensor, places: Tensor, masked: Tensor, following: Tensor
    ) -> Tensor:
        """Loss of masked words (batch, predictions) at places, and of whether the second sentence follows."""
        x, pooled = self.encode(tokens, segments, mask)
        x = x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        x = self.transform_norm(F.gelu(self.transform(x)))
        scores = F.linear(x, self.words.weight, self.bias)
        words = F.cross_entropy(scores.flatten(0, 1), masked.flatten())
        return words + F.cross_entropy(self.follows(pooled), following)


class EncoderDecoder(nn.Module):
    """Transformer for pairs of sequences: the big one of arXiv 1706.03762, norms first; or BART (arXiv 1910.13461).

    Args:
        learned: positions are weights and the embedding has a norm (BART); else sines, and norms come first.
    """

    def __init__(
        self, layers: int, vocabulary: int, learned: bool, width: int = 1024, heads: int = 16, inner: int = 4096
    ) -> None:
        super().__init__()
        self.learned = learned
        self.words = nn.Embedding(vocabulary, width)
        kind = {"gelu": learned, "before": not learned}
        self.encoder = nn.ModuleList(Block(width, heads, inner, **kind) for _ in range(layers))
        self.decoder = nn.ModuleList(Block(width, heads, inner, cross=True, **kind) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.places = nn.ModuleList(nn.Embedding(1026, width) for _ in range(2)) if learned else None

    def forward(self, source: Tensor, before: Tensor, target: Tensor) -> Tensor:
        """Label-smoothed loss of target, given source and the target one token earlier; all (batch, tokens)."""
        memory = self._embed(source, 0)
        for block in self.encoder:
            memory = block(memory, None)
        memory = memory if self.learned else self.norms[0](memory)
        x = self._embed(before, 1)
        ahead = torch.full((before.shape[1],) * 2, -math.inf, device=x.device, dtype=x.dtype).triu(1)
        for block in self.decoder:
            x = block(x, ahead, memory)
        x = x if self.learned else self.norms[1](x)
        scores = F.linear(x, self.words.weight)
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), label_smoothing=0.1)

    def _embed(self, tokens: Tensor, side: int) -> Tensor:
        x = self.words(tokens)
        at = torch.arange(tokens.shape[1], device=x.device)
        if self.places is not None:
            x = self.norms[side](x + self.places[side](at + 2))
        else:
            x = x * math.sqrt(x.shape[-1]) + _sines(at, x.shape[-1])
        return F.dropout(x, 0.1, self.training)


class TransformerXL(nn.Module):
    """Transformer-XL (arXiv 1901.02860): relative positions, a memory of the tokens before, one softmax over words."""

    def __init__(
        self, layers: int, width: int, heads: int, inner: int, dropout: float, vocabulary: int = 267_735
    ) -> None:
        super().__init__()
        self.width, self.dropout = width, dropout
        self.words = nn.Embedding(vocabulary, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.content, self.place = (nn.Parameter(torch.zeros(heads, width // heads)) for _ in range(2))
        self.blocks = nn.ModuleList(RelativeBlock(width, heads, inner, dropout) for _ in range(layers))

    def forward(self, tokens: Tensor, target: Tensor, memory: Tensor) -> Tensor:
        """Mean loss of target (tokens, batch), given memory (layers, earlier tokens, batch, width)."""
        length, total = len(tokens), len(tokens) + memory.shape[1]
        x = F.dropout(self.words(tokens) * math.sqrt(self.width), self.dropout, self.training)
        at = torch.arange(total - 1, -1, -1, device=x.device)
        places = F.dropout(_sines(at, self.width).to(x.dtype), self.dropout, self.training)
        ahead = torch.ones(length, total, dtype=torch.bool, device=x.device).triu(1 + total - length)
        for block, earlier in zip(self.blocks, memory, strict=True):
            x = block(x, earlier, places, ahead, self.content, self.place)
        x = F.dropout(x, self.dropout, self.training)
        return F.cross_entropy(F.linear(x, self.words.weight, self.bias).flatten(0, 1), target.flatten())


class RelativeBlock(nn.Module):
    """Attention with relative positions, then two dense layers; a norm after each."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.projected = nn.Linear(width, 3 * width, bias=False)
        self.places = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dense = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width), nn.Dropout(dropout)
        )

    def forward(
        self, x: Tensor, memory: Tensor, places: Tensor, ahead: Tensor, content: Tensor, place: Tensor
    ) -> Tensor:
        """The block's output for x (tokens, batch, width)."""
        query, key, value = self.projected(torch.cat([memory.to(x.dtype), x])).chunk(3, -1)
        query, key, value = self._split(query[-len(x) :]), self._split(key), self._split(value)
        where = self._split(self.places(places))
        by_content = torch.einsum("ibnd,jbnd->bnij", query + content, key)
        by_place = _shifted(torch.einsum("ibnd,jnd->bnij", query + place, where))
        scores = (by_content + by_place) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(ahead, -math.inf).softmax(-1)
        found = torch.einsum("bnij,jbnd->ibnd", F.dropout(weights, self.dropout, self.training), value)
        x = self.norms[0](x + F.dropout(self.output(found.flatten(2)), self.dropout, self.training))
        return self.norms[1](x + self.dense(x))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))


def _shifted(scores: Tensor) -> Tensor:
    """Row i moved by i: from positions counted from the last token to those counted from each token."""
    batch, heads, rows, columns = scores.shape
    padded = torch.cat([scores.new_zeros(batch, heads, rows, 1), scores], -1)
    return padded.view(batch, heads, columns + 1, rows)[:, :, 1:].reshape(batch, heads, rows, columns)


def _sines(at: Tensor, width: int) -> Tensor:
    rates = torch.exp(torch.arange(0, width, 2, device=at.device) * (-math.log(10_000.0) / width))
    angles = at[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)
