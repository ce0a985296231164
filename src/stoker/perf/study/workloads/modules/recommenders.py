# (torch leaves parts of its signatures untyped)
"""Networks that look up rows of large tables: NCF, Wide & Deep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NeuralCollaborativeFiltering(nn.Module):
    """A product of factors next to a small MLP (arXiv 1708.05031)."""

    def __init__(
        self, users: int = 138_493, items: int = 26_744, factors: int = 64, widths: Sequence[int] = (256, 256, 128, 64)
    ) -> None:
        super().__init__()
        self.user_factors, self.item_factors = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_words, self.item_words = (nn.Embedding(count, widths[0] // 2) for count in (users, items))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.last = nn.Linear(widths[-1] + factors, 1)

    def forward(self, users: Tensor, items: Tensor, labels: Tensor) -> Tensor:
        """Mean binary cross-entropy of whether each user chose the item; all (batch,)."""
        product = self.user_factors(users) * self.item_factors(items)
        x = torch.cat([self.user_words(users), self.item_words(items)], 1)
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), 0.5, self.training)
        scores = self.last(torch.cat([product, x], 1)).squeeze(-1)
        return F.binary_cross_entropy_with_logits(scores, labels)


class WideAndDeep(nn.Module):
    """A linear model of all features next to an MLP of their embeddings (arXiv 1606.07792).

    Args:
        tables: rows and columns of each feature's embedding; in the wide part each has one column.
        numbers: features that are numbers.
        indicators: rows of the features after these, which enter the MLP as one-hot vectors.
    """

    def __init__(
        self,
        tables: Sequence[tuple[int, int]],
        numbers: int,
        indicators: Sequence[int] = (),
        hidden: Sequence[int] = (1024,) * 5,
    ) -> None:
        super().__init__()
        self.indicators = tuple(indicators)
        self.deep = nn.ModuleList(nn.EmbeddingBag(rows, columns, mode="mean") for rows, columns in tables)
        counts = [rows for rows, _ in tables] + list(indicators)
        self.wide = nn.ModuleList(nn.EmbeddingBag(rows, 1, mode="sum") for rows in counts)
        self.numbers = nn.Linear(numbers, 1)
        widths = (sum(columns for _, columns in tables) + sum(indicators) + numbers, *hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.last = nn.Linear(widths[-1], 1)

    def forward(self, labels: Tensor, numbers: Tensor, *columns: Tensor) -> Tensor:
        """Binary cross-entropy of clicks (batch,), given numbers (batch, numbers) and the indices of each feature."""
        wide = self.numbers(numbers)
        for table, found in zip(self.wide, columns, strict=True):
            wide = wide + table(found)
        deep = [table(found) for table, found in zip(self.deep, columns, strict=False)]
        flags = [
            F.one_hot(found.squeeze(1), rows).to(numbers.dtype)
            for found, rows in zip(columns[len(self.deep) :], self.indicators, strict=True)
        ]
        x = torch.cat([*deep, *flags, numbers], 1)
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), 0.1, self.training)
        return F.binary_cross_entropy_with_logits((self.last(x) + wide).squeeze(-1), labels)
