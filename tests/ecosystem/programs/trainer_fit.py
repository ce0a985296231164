"""Hugging Face Trainer: its own samplers, seedable loaders, gradient accumulation, evaluation."""

import sys
import tempfile

import torch
from data import Pictures, make_model
from torch import nn
from torch.nn import functional
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def forward(self, pictures, labels):
        logits = self.model(pictures)
        loss = functional.cross_entropy(logits, labels)
        print(f"{'train' if self.training else 'eval'} loss {loss.item()!r}")
        return {"loss": loss, "logits": logits}


def collate(samples):
    pictures, labels = zip(*samples, strict=True)
    return {"pictures": torch.stack(pictures), "labels": torch.tensor(labels)}


class Epochs(TrainerCallback):
    def on_epoch_end(self, args, state, control, **_):
        print("epoch ends at step", state.global_step)


if __name__ == "__main__":
    for workers in (0, 2):
        print("workers", workers)
        torch.manual_seed(3)
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                num_train_epochs=2,
                per_device_train_batch_size=4,
                per_device_eval_batch_size=4,
                gradient_accumulation_steps=2,
                dataloader_num_workers=workers,
                dataloader_persistent_workers=workers > 0,
                dataloader_pin_memory=False,
                eval_strategy="epoch",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                log_level="error",
                logging_strategy="no",
                use_cpu=True,
                seed=3,
            )
            trainer = Trainer(
                model=Classifier(),
                args=arguments,
                train_dataset=Pictures(),
                eval_dataset=Pictures(10),
                data_collator=collate,
                callbacks=[Epochs()],
            )
            trainer.remove_callback(PrinterCallback)  # prints times
            trainer.train()
        print("stream", torch.rand(1).item())
        sys.stdout.flush()
