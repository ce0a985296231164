"""Six kinds of programs under DistributedDataParallel, as people write them; started by torchrun or by its variables.

Arguments: the kind, steps, and optionally a folder for losses, one file a rank.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))


class Decoder(nn.Module):
    """A language model whose table is its head as well."""

    def __init__(self, words=2000, width=128, depth=6):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return (x + self.inner(x)).relu()


class Images(nn.Module):
    def __init__(self, width=96, depth=6):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Recommender(nn.Module):
    """Tables of unlike sizes, one of them larger than all else."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 32) for rows in (20_000, 3_000, 500))
        self.layers = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, ids):
        rows = [table(ids[:, at] % table.num_embeddings) for at, table in enumerate(self.tables)]
        return self.layers(torch.cat(rows, 1))


def perceptron():
    layers = [nn.Sequential(nn.Linear(384, 768), nn.GELU(), nn.Linear(768, 384), nn.LayerNorm(384)) for _ in range(5)]
    return nn.Sequential(*layers, nn.Linear(384, 10))


class Recurrent(nn.Module):
    def __init__(self, words=1500, width=160):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        return self.head(self.lstm(self.table(ids))[0]).flatten(0, 1)


def words(count, length, rows):
    def batch(random):
        ids = torch.randint(count, (rows, length + 1), generator=random)
        return ids[:, :-1], ids[:, 1:].flatten()

    return batch


def images(random):
    return torch.randn(8, 3, 12, 12, generator=random), torch.randint(10, (8,), generator=random)


def numbers(random):
    return torch.randn(64, 384, generator=random), torch.randint(10, (64,), generator=random)


def clicks(random):
    return torch.randint(20_000, (64, 3), generator=random), torch.randint(2, (64,), generator=random)


def adamw(module):
    decayed = [each for each in module.parameters() if each.dim() > 1]
    others = [each for each in module.parameters() if each.dim() <= 1]
    return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-3)


def adam(module):
    return torch.optim.Adam(module.parameters(), lr=1e-3)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


KINDS = {
    # model, batch, optimizer, norm that gradients are clipped to, micro-batches
    "decoder": (Decoder, words(2000, 32, 4), adamw, 1.0, 1),
    "images": (Images, images, sgd, 0.0, 1),
    "recommender": (Recommender, clicks, adam, 0.0, 1),
    "perceptron": (perceptron, numbers, adamw, 0.0, 2),
    "recurrent": (Recurrent, words(1500, 24, 8), adam, 0.5, 1),
    "deep": (lambda: Decoder(400, 160, 8), words(400, 48, 8), adamw, 1.0, 1),
}


def main(kind, steps, folder=None):
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(0)
    make, batch, optimizer_of, clip, micro = KINDS[kind]
    model = make()
    optimizer = optimizer_of(model)
    ddp = DistributedDataParallel(model)
    random = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        for at in range(micro):
            x, y = batch(random)
            ddp.require_backward_grad_sync = at == micro - 1
            loss = nn.functional.cross_entropy(ddp(x), y) / micro
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(ddp.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if folder:
        Path(folder, f"losses-{rank}.json").write_text(json.dumps(losses))
    return ddp, optimizer, losses


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:4])
    dist.destroy_process_group()
