"""Classify JPEG photographs with a small convolutional network."""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from data import JpegDataset, centre_crop, cut_photographs, find_images, random_resized_crop_and_flip
from model import EmulatedModel, SmallCNN
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

QUICK = {"epochs": 1, "steps": 6, "batch_size": 16, "size": 64, "images": 128}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of JPEGs instead of cuts from scikit-learn's photographs")
    parser.add_argument("--work-dir", type=Path, help="where the cut photographs are kept, instead of the temp folder")
    parser.add_argument("--images", type=int, default=1024, help="how many photographs to cut")
    parser.add_argument("--size", type=int, default=224, help="side of the training images in pixels")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="stop after this many training steps")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="num_workers of the DataLoaders")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accelerator", choices=("cpu", "cuda", "emulated"), default="cpu")
    parser.add_argument("--step-ms", type=float, default=50, help="time of a step of the emulated accelerator")
    parser.add_argument("--deterministic", action="store_true", help="train on centre crops, without augmentation")
    parser.add_argument("--quick", action="store_true", help="a few small steps")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def make_loaders(args: argparse.Namespace) -> tuple[DataLoader, DataLoader, int]:
    folder = args.data or cut_photographs(args.work_dir, args.images)
    samples, classes = find_images(folder)
    held_out = set(range(0, len(samples), 10))
    train_samples = [sample for i, sample in enumerate(samples) if i not in held_out]
    val_samples = [samples[i] for i in sorted(held_out)]
    transform = centre_crop if args.deterministic else random_resized_crop_and_flip
    pin = args.accelerator == "cuda"
    train = DataLoader(
        JpegDataset(train_samples, args.size, transform),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=pin,
    )
    val = DataLoader(
        JpegDataset(val_samples, args.size, centre_crop),
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=pin,
    )
    print(f"{len(train_samples)} training, {len(val_samples)} validation photographs, {len(classes)} classes: {folder}")
    return train, val, len(classes)


def make_model(args: argparse.Namespace, num_classes: int) -> nn.Module:
    if args.accelerator == "emulated":
        print(f"accelerator: emulated, each step sleeps {args.step_ms:g} ms instead of computing")
        return EmulatedModel(num_classes, args.step_ms / 1000)
    print(f"accelerator: {args.accelerator}")
    return SmallCNN(num_classes).to(args.accelerator)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Mean loss and share of right answers over the validation photographs."""
    model.eval()
    loss_sum = num_right = num_seen = 0
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        logits = model(images)
        loss_sum += F.cross_entropy(logits, labels, reduction="sum").item()
        num_right += (logits.argmax(dim=1) == labels).sum().item()
        num_seen += len(labels)
    return loss_sum / num_seen, num_right / num_seen


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    np.random.seed(args.seed)
    device = torch.device("cuda" if args.accelerator == "cuda" else "cpu")
    train, val, num_classes = make_loaders(args)
    model = make_model(args, num_classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    step, num_images, train_s = 0, 0, 0.0
    for epoch in range(1, args.epochs + 1):
        model.train()
        started = time.perf_counter()
        for images, labels in train:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            num_images += len(labels)
            print(f"step {step} loss {loss.item()!r}", flush=True)
            if step == args.steps:
                break
        train_s += time.perf_counter() - started
        val_loss, accuracy = validate(model, val, device)
        print(f"epoch {epoch} validation loss {val_loss!r} accuracy {accuracy:.1%}", flush=True)
        if step == args.steps:
            break
    print(f"{step} steps, {num_images} images in {train_s:.1f} s of training: {num_images / train_s:.1f} images/s")


if __name__ == "__main__":
    main()
