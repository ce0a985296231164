"""Accelerate: prepared loaders, accumulation, skip_first_batches, gathering."""

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import set_seed
from data import Pictures, make_model
from torch.nn import functional
from torch.utils.data import DataLoader

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    for workers in (0, 2):
        print("workers", workers)
        set_seed(3)
        dataset = Pictures()
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers)
        held_out = DataLoader(Pictures(10), batch_size=4, num_workers=workers)
        model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
        for epoch in range(3):
            dataset.epoch = epoch
            loader.set_epoch(epoch)
            batches = skip_first_batches(loader, 2) if epoch == 1 else loader
            for pictures, labels in batches:
                with accelerator.accumulate(model):
                    loss = functional.cross_entropy(model(pictures), labels)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                print(f"epoch {epoch} loss {loss.item()!r} last {batches.end_of_dataloader}")
            with torch.no_grad():
                for pictures, labels in held_out:
                    right = accelerator.gather_for_metrics(model(pictures).argmax(1) == labels)
                    print(f"epoch {epoch} right {right.sum().item()} of {len(right)}")
        print("stream", torch.rand(1).item())
    accelerator.end_training()
