"""Hugging Face Trainer: what depends on the batch alone is done in compute_loss."""

import tempfile

import torch
from data import BATCH, STEPS, classifier, pictures
from torch import nn
from torch.nn import functional
from transformers import PrinterCallback, Trainer, TrainingArguments


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = classifier()

    def forward(self, pixels, labels):
        return {"logits": self.model(pixels)}


class Scaling(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        scaled = (inputs["pixels"].float() / 255 - 0.5) / 0.25
        outputs = model(scaled, inputs["labels"])
        loss = functional.cross_entropy(outputs["logits"], inputs["labels"])
        print(repr(loss.item()))
        return (loss, outputs) if return_outputs else loss


def collate(samples):
    pixels, labels = zip(*samples, strict=True)
    return {"pixels": torch.stack(pixels), "labels": torch.stack(labels)}


def main():
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            gradient_accumulation_steps=2,
            dataloader_num_workers=2,
            dataloader_pin_memory=False,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            log_level="error",
            logging_strategy="no",
            remove_unused_columns=False,
            use_cpu=True,
            seed=3,
        )
        trainer = Scaling(
            model=Classifier(),
            args=arguments,
            train_dataset=pictures(STEPS * BATCH),
            eval_dataset=pictures(5 * BATCH, seed=1),
            data_collator=collate,
        )
        trainer.remove_callback(PrinterCallback)  # prints times
        trainer.train()
