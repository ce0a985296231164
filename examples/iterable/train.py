"""Tell the shape of noisy signals that are streamed from compressed shards."""

import argparse
import gzip
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from make_shards import LENGTH, SHAPES, make_shards
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

QUICK = {"epochs": 2, "steps": 30, "shards": 8, "records": 100, "batch_size": 32}

Sample = tuple[torch.Tensor, int]


class SignalStream(IterableDataset):
    """Pairs of a normalised signal [1, length] and its label; each worker reads its share of the shards.

    With a ``buffer`` the shards are read in random order and the samples leave through a shuffle buffer.
    """

    def __init__(self, shards: list[Path], buffer: int = 0):
        self.shards = shards
        self.buffer = buffer
        self.epoch = 0

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        shards = self.shards if info is None else self.shards[info.id :: info.num_workers]
        if not self.buffer:
            return self.read(shards)
        # A persistent worker keeps its seed and its copy of the dataset, so the epoch makes the order a new one.
        rng = random.Random((torch.initial_seed() if info is None else info.seed) + self.epoch)
        self.epoch += 1
        return self.shuffled(self.read(rng.sample(shards, len(shards))), rng)

    def read(self, shards: list[Path]) -> Iterator[Sample]:
        for shard in shards:
            with gzip.open(shard, "rt") as file:
                for line in file:
                    yield self.decode(line)

    @staticmethod
    def decode(line: str) -> Sample:
        record = json.loads(line)
        signal = torch.tensor(record["signal"])
        return ((signal - signal.mean()) / signal.std()).unsqueeze(0), SHAPES.index(record["shape"])

    def shuffled(self, samples: Iterator[Sample], rng: random.Random) -> Iterator[Sample]:
        buffer: list[Sample] = []
        for sample in samples:
            if len(buffer) < self.buffer:
                buffer.append(sample)
                continue
            i = rng.randrange(len(buffer))
            buffer[i], sample = sample, buffer[i]
            yield sample
        rng.shuffle(buffer)
        yield from buffer


class SignalNet(nn.Sequential):
    """Three convolutions over time, mean, linear."""

    def __init__(self):
        super().__init__(
            nn.Conv1d(1, 16, kernel_size=9, stride=2, padding=4),
            nn.ReLU(),
            nn.Conv1d(16, 32, kernel_size=9, stride=2, padding=4),
            nn.ReLU(),
            nn.Conv1d(32, 32, kernel_size=9, stride=2, padding=4),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(32, len(SHAPES)),
        )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of .jsonl.gz shards instead of those from make_shards.py")
    parser.add_argument("--work-dir", type=Path, help="where the made shards are kept, instead of the temp folder")
    parser.add_argument("--shards", type=int, default=16, help="how many shards to make")
    parser.add_argument("--records", type=int, default=1000, help="signals of each made shard")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="stop after this many training steps")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--buffer", type=int, default=500, help="samples in each worker's shuffle buffer")
    parser.add_argument("--workers", type=int, default=2, help="num_workers of the DataLoaders")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--deterministic", action="store_true", help="stream in the order of the shards, unshuffled")
    parser.add_argument("--quick", action="store_true", help="a few small steps")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: str) -> tuple[float, float]:
    """Mean loss and share of right answers over the shard that was held out."""
    loss_sum = num_right = num_seen = 0
    for signals, labels in loader:
        signals, labels = signals.to(device), labels.to(device)
        logits = model(signals)
        loss_sum += F.cross_entropy(logits, labels, reduction="sum").item()
        num_right += (logits.argmax(dim=1) == labels).sum().item()
        num_seen += len(labels)
    return loss_sum / num_seen, num_right / num_seen


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    folder = args.data or make_shards(args.work_dir, args.shards, args.records)
    shards = sorted(folder.glob("*.jsonl.gz"))
    if len(shards) < 2:
        raise SystemExit(f"`--data` must be a folder with at least 2 .jsonl.gz shards, found {len(shards)} in {folder}")
    buffer = 0 if args.deterministic else args.buffer
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    train = DataLoader(SignalStream(shards[:-1], buffer), persistent_workers=args.workers > 0, **options)
    val = DataLoader(SignalStream(shards[-1:]), **options)
    print(f"{len(shards) - 1} training shards and 1 validation shard, signals of {LENGTH} samples: {folder}")
    model = SignalNet().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    step, num_signals, train_s = 0, 0, 0.0
    for epoch in range(1, args.epochs + 1):
        started = time.perf_counter()
        for signals, labels in train:
            loss = F.cross_entropy(model(signals.to(args.device)), labels.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            num_signals += len(labels)
            print(f"step {step} loss {loss.item()!r}", flush=True)
            if step == args.steps:
                break
        train_s += time.perf_counter() - started
        val_loss, accuracy = validate(model, val, args.device)
        print(f"epoch {epoch} validation loss {val_loss!r} accuracy {accuracy:.1%}", flush=True)
        if step == args.steps:
            break
    print(f"{step} steps, {num_signals} signals in {train_s:.1f} s of training: {num_signals / train_s:.0f} signals/s")


if __name__ == "__main__":
    main()
