"""Train a small transformer language model on a folder of text."""

import argparse
import math
import time
from pathlib import Path

import torch
from data import IGNORE, PackBlocks, Passages, find_text
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, random_split

QUICK = {"epochs": 1, "steps": 6, "batch_size": 8, "files": 40, "block_size": 64}


class LanguageModel(nn.Module):
    """Embeddings, causal transformer layers, and the logits of the next token."""

    def __init__(self, vocabulary: int, block_size: int, dim: int = 64, num_layers: int = 2, num_heads: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(block_size, dim)
        layer = nn.TransformerEncoderLayer(dim, num_heads, 4 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        hidden = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        # Padding stands at the end of a block only, so that the causal mask hides it from every real token.
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.norm(self.layers(hidden, mask=mask, is_causal=True))
        return hidden @ self.tokens.weight.T / math.sqrt(hidden.shape[-1])


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of text files instead of Python's standard library")
    parser.add_argument("--files", type=int, help="use only this many files")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="stop after this many training steps")
    parser.add_argument("--batch-size", type=int, default=16, help="passages packed into one batch")
    parser.add_argument("--passage-bytes", type=int, default=1024)
    parser.add_argument("--block-size", type=int, default=128, help="tokens of a block")
    parser.add_argument("--max-blocks", type=int, default=48, help="blocks of a batch at most")
    parser.add_argument("--workers", type=int, default=2, help="num_workers of the DataLoaders")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few small steps")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor], device: str) -> torch.Tensor:
    logits = model(batch["tokens"].to(device))
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].to(device).flatten(), ignore_index=IGNORE)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: str) -> float:
    """Mean over the validation batches of the loss per token."""
    model.eval()
    losses = [loss_of(model, batch, device).item() for batch in loader]
    return sum(losses) / len(losses)


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    files = find_text(args.data)[: args.files]
    passages = Passages(files, args.passage_bytes, args.vocabulary)
    num_val = max(1, len(passages) // 50)
    train_set, val_set = random_split(passages, [len(passages) - num_val, num_val])
    options = {
        "batch_size": args.batch_size,
        "num_workers": args.workers,
        "collate_fn": PackBlocks(args.block_size, args.max_blocks),
    }
    train = DataLoader(train_set, shuffle=True, **options)
    val = DataLoader(val_set, **options)
    print(f"{len(train_set)} training and {num_val} validation passages from {len(files)} files in {files[0].parent}")
    model = LanguageModel(args.vocabulary, args.block_size).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    step, num_tokens, train_s = 0, 0, 0.0
    for epoch in range(1, args.epochs + 1):
        model.train()
        started = time.perf_counter()
        for batch in train:
            loss = loss_of(model, batch, args.device)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            num_tokens += (batch["targets"] != IGNORE).sum().item()
            print(f"step {step} loss {loss.item()!r}", flush=True)
            if step == args.steps:
                break
        train_s += time.perf_counter() - started
        print(f"epoch {epoch} validation loss {validate(model, val, args.device)!r}", flush=True)
        if step == args.steps:
            break
    print(f"{step} steps, {num_tokens} tokens in {train_s:.1f} s of training: {num_tokens / train_s:.0f} tokens/s")


if __name__ == "__main__":
    main()
