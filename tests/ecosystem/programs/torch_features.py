"""Plain torch with what people add: a compiled model, autocast, accumulation, clipping, a scheduler, random_split."""

import argparse

import torch
from data import Pictures, make_model
from torch.nn import functional
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--flip", type=float)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    options = parser.parse_args()
    for workers in options.workers:
        print("workers", workers)
        torch.manual_seed(3)
        whole = ConcatDataset([Pictures(20, options.flip), Subset(Pictures(30, options.flip), range(10, 30))])
        train, held_out = random_split(whole, [32, 8])
        loader = DataLoader(train, batch_size=4, shuffle=True, num_workers=workers, pin_memory=False)
        check = DataLoader(held_out, batch_size=8, num_workers=workers)
        net = make_model()
        model = torch.compile(net, backend=options.backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20)
        for epoch in range(2):
            for step, (pictures, labels) in enumerate(loader):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = functional.cross_entropy(model(pictures), labels)
                (loss / 2).backward()
                if step % 2:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    scheduler.step()
                print(f"epoch {epoch} step {step} loss {loss.item()!r}")
            with torch.inference_mode():
                print("held out", sum(functional.cross_entropy(net(x), y).item() for x, y in check))
        print("stream", torch.rand(1).item())
