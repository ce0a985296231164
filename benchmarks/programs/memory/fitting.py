"""A perceptron under Lightning, with accumulation and validation."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 40))

    def training_step(self, batch, number):
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, number):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(-1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def loader(count, size):
    return DataLoader(TensorDataset(torch.randn(count, 256), torch.randint(40, (count,))), batch_size=size)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
    )
    trainer.fit(Classifier(), loader(512, 64), loader(1024, 512))
