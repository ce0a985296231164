"""Predict clicks from Criteo-shaped rows in Parquet files with a small DLRM."""

import argparse
import time
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from make_data import CATEGORIES, DENSE, ROW_GROUP, make_data
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset

QUICK = {"epochs": 1, "steps": 8, "rows": 20_000}

NUM_BUCKETS = 4  # of the dense columns, also used as categories
BUCKET_EDGES = np.log1p(np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]))
NUM_FEATURES = len(CATEGORIES) + NUM_BUCKETS

Columns = dict[str, np.ndarray]


@lru_cache(maxsize=16)
def open_parquet(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path)


class RowGroups(Dataset):
    """A sample is one row group of one file, as features: ``label`` [n], ``dense`` [n, 13], ``sparse`` [n, 30]."""

    def __init__(self, folder: Path, hash_size: int):
        self.hash_size = hash_size
        paths = sorted(folder.glob("*.parquet"))
        if not paths:
            raise SystemExit(f"`--data` must be a folder with .parquet files, found none in {folder}")
        self.groups = [(path, i) for path in paths for i in range(pq.read_metadata(path).num_row_groups)]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> Columns:
        path, group = self.groups[index]
        table = open_parquet(path).read_row_group(group, columns=["label", *DENSE, *CATEGORIES], use_threads=False)
        dense = np.stack([log_counts(table[name]) for name in DENSE], axis=1)
        buckets = [np.digitize(dense[:, i], BUCKET_EDGES) for i in range(NUM_BUCKETS)]
        hashes = [hash_strings(table[name], self.hash_size) for name in CATEGORIES]
        return {
            "label": table["label"].to_numpy().astype(np.float32),
            "dense": dense,
            "sparse": np.stack(hashes + buckets, axis=1).astype(np.int64),
        }


def log_counts(column: pa.ChunkedArray) -> np.ndarray:
    """log(1 + count) as float32, 0 where the count is missing."""
    counts = column.fill_null(0).to_numpy()
    return np.log1p(np.maximum(counts, 0)).astype(np.float32)


def hash_strings(column: pa.ChunkedArray, size: int) -> np.ndarray:
    """A number below ``size`` for each string; 0 is kept for missing ones."""
    return np.array([0 if s is None else 1 + zlib.crc32(s.encode()) % (size - 1) for s in column.to_pylist()])


def collate(groups: list[Columns]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.concatenate([group[name] for group in groups])) for name in groups[0]}


class DLRM(nn.Module):
    """Dense features through an MLP, sparse ones through embeddings, all pairwise products, another MLP."""

    def __init__(self, hash_size: int, dim: int):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(len(DENSE), 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(hash_size, dim, sparse=True) for _ in range(NUM_FEATURES))
        num_vectors = NUM_FEATURES + 1
        self.register_buffer("pairs", torch.triu_indices(num_vectors, num_vectors, offset=1), persistent=False)
        self.top = nn.Sequential(nn.Linear(dim + self.pairs.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.05, 0.05)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        bags = [table(sparse[:, i : i + 1]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([bottom, *bags], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([bottom, products[:, self.pairs[0], self.pairs[1]]], dim=1)).squeeze(1)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of Parquet files instead of rows from make_data.py")
    parser.add_argument("--work-dir", type=Path, help="where the made rows are kept, instead of the temp folder")
    parser.add_argument("--rows", type=int, default=100_000, help="how many rows to make")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop after this many training steps")
    parser.add_argument("--batch-size", type=int, default=2048, help=f"in rows, a multiple of {ROW_GROUP}")
    parser.add_argument("--workers", type=int, default=2, help="num_workers of the DataLoaders")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--hash-size", type=int, default=20_000, help="rows of each embedding table")
    parser.add_argument("--dim", type=int, default=16, help="width of the embeddings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few steps on a few rows")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    args = parser.parse_args()
    if args.batch_size < ROW_GROUP or args.batch_size % ROW_GROUP:
        parser.error(f"`--batch-size` must be a multiple of {ROW_GROUP}, got {args.batch_size}")
    return args


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: str) -> float:
    """Mean loss over the rows that were held out."""
    loss_sum = num_rows = 0
    for batch in loader:
        label, dense, sparse = (batch[name].to(device) for name in ("label", "dense", "sparse"))
        loss_sum += F.binary_cross_entropy_with_logits(model(dense, sparse), label, reduction="sum").item()
        num_rows += len(label)
    return loss_sum / num_rows


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.sparse.check_sparse_tensor_invariants.disable()  # said explicitly, as Adagrad warns otherwise
    folder = args.data or make_data(args.work_dir, args.rows)
    dataset = RowGroups(folder, args.hash_size)
    num_val = max(1, len(dataset) // 10)
    split = len(dataset) - num_val  # the last rows are the latest: validate on them
    options = {"batch_size": args.batch_size // ROW_GROUP, "num_workers": args.workers, "collate_fn": collate}
    train = DataLoader(Subset(dataset, range(split)), shuffle=True, **options)
    val = DataLoader(Subset(dataset, range(split, len(dataset))), **options)
    print(f"{split} training and {num_val} validation groups of {ROW_GROUP} rows: {folder}")
    model = DLRM(args.hash_size, args.dim).to(args.device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)

    step, num_rows, train_s = 0, 0, 0.0
    for epoch in range(1, args.epochs + 1):
        started = time.perf_counter()
        for batch in train:
            label, dense, sparse = (batch[name].to(args.device) for name in ("label", "dense", "sparse"))
            loss = F.binary_cross_entropy_with_logits(model(dense, sparse), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            num_rows += len(label)
            print(f"step {step} loss {loss.item()!r}", flush=True)
            if step == args.steps:
                break
        train_s += time.perf_counter() - started
        print(f"epoch {epoch} validation loss {validate(model, val, args.device)!r}", flush=True)
        if step == args.steps:
            break
    print(f"{step} steps, {num_rows} rows in {train_s:.1f} s of training: {num_rows / train_s:.0f} rows/s")


if __name__ == "__main__":
    main()
