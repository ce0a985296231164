"""A small decoder that makes a cache of keys and values for each forward pass, as libraries' models do by default.

Argument: where to write what came of it.
"""

import json
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Cache:
    """Keys and values of all blocks, those of new words behind those of earlier ones."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def update(self, place: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds those of new words to a block's."""
        before = [self.keys[place]] if place in self.keys else []
        self.keys[place] = torch.cat([*before, keys], dim=2)
        before = [self.values[place]] if place in self.values else []
        self.values[place] = torch.cat([*before, values], dim=2)
        return self.keys[place], self.values[place]


class Attention(nn.Module):
    """Attends to what the cache has."""

    def __init__(self, place: int, width: int) -> None:
        super().__init__()
        self.place = place
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Values of all words before, weighed."""
        queries, keys, values = (each.unflatten(2, (4, -1)).transpose(1, 2) for each in self.inner(x).chunk(3, 2))
        if cache is not None:
            keys, values = cache.update(self.place, keys, values)
        mask = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool).tril()
        out = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.outer(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, place: int, width: int) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(width), Attention(place, width)
        self.second, self.mlp = nn.LayerNorm(width), nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )  # fmt: skip

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """The block's output."""
        x = x + self.attention(self.first(x), cache=cache)
        return x + self.mlp(self.second(x))


class Decoder(nn.Module):
    """Returns logits and the cache."""

    def __init__(self, words: int = 200, width: int = 48, blocks: int = 5) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(Block(place, width) for place in range(blocks))

    def forward(self, x: Tensor) -> tuple[Tensor, Cache]:
        """Logits, and what a next word would need."""
        cache, x = Cache(), self.embedding(x)
        for block in self.blocks:
            x = block(x, cache)
        return self.head(x), cache


def main() -> None:
    """Trains, and writes."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for at, (words,) in enumerate(DataLoader(TensorDataset(torch.randint(200, (16 * 8, 48))), batch_size=16)):
        loss = nn.functional.cross_entropy(model(words)[0].flatten(0, 1), words.flatten()) / 2
        loss.backward()
        losses.append(loss.item())
        if at % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1] + ".pt")
    with open(sys.argv[1] + ".json", "w") as file:
        json.dump({"losses": losses}, file)


if __name__ == "__main__":
    main()
