"""Trains under a framework that makes the replicated module itself; its argument is which: ranks of torchrun.

Each rank writes its rank, the norm of its weights and their hash.
"""

import hashlib
import logging
import os
import sys
import tempfile
import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 12, 8
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))


def rows():
    drawn = torch.Generator().manual_seed(1)
    count = 2 * STEPS * BATCH
    return TensorDataset(torch.randn(count, 64, generator=drawn), torch.randint(4, (count,), generator=drawn))


def with_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=BATCH))
    for x, y in loader:
        accelerator.backward(functional.cross_entropy(prepared(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return model, accelerator.end_training


def with_lightning():
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make_model()

        def training_step(self, batch, number):
            return functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    own = Classifier()
    trainer.fit(own, DataLoader(rows(), batch_size=BATCH))
    return own.model, torch.distributed.destroy_process_group


def with_trainer():
    from transformers import PrinterCallback, Trainer, TrainingArguments

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = make_model()

        def forward(self, x, y):
            logits = self.model(x)
            return {"loss": functional.cross_entropy(logits, y), "logits": logits}

    def collate(samples):
        x, y = zip(*samples, strict=True)
        return {"x": torch.stack(x), "y": torch.stack(y)}

    own = Classifier()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=1, per_device_train_batch_size=BATCH, save_strategy="no", report_to=[],
            disable_tqdm=True, log_level="error", logging_strategy="no", use_cpu=True, ddp_backend="gloo",
            dataloader_pin_memory=False, learning_rate=0.01,
        )  # fmt: skip
        trainer = Trainer(model=own, args=arguments, train_dataset=rows(), data_collator=collate)
        trainer.remove_callback(PrinterCallback)  # prints times
        trainer.train()
    return own.model, torch.distributed.destroy_process_group


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, end = {"accelerate": with_accelerate, "lightning": with_lightning, "trainer": with_trainer}[sys.argv[1]]()
    weights = [each.detach().double() for each in model.parameters()]
    found = hashlib.sha256(b"".join(each.numpy().tobytes() for each in weights)).hexdigest()
    norm = sum(float(each.square().sum()) for each in weights)
    os.write(1, f"rank {os.environ['RANK']} {norm!r} {found[:16]}\n".encode())  # one write: ranks do not mix
    end()
