"""Lightning: what depends on the batch alone is done in training_step."""

import logging
import warnings

import lightning
import torch
from data import BATCH, classifier, options, pictures
from torch.nn import functional
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = classifier()
        self.register_buffer("mean", torch.tensor(0.4))

    def loss(self, batch):
        pixels, labels = batch
        scaled = (pixels.float() / 255 - self.mean) / 0.25
        return functional.cross_entropy(self.model(scaled), labels)

    def training_step(self, batch, number):
        loss = self.loss(batch)
        print("train", repr(loss.item()))
        return loss

    def validation_step(self, batch, number):
        print("validation", repr(self.loss(batch).item()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    held_out = DataLoader(pictures(4 * BATCH, seed=1), **options(shuffle=False))
    trainer.fit(Classifier(), DataLoader(pictures(), **options()), held_out)
