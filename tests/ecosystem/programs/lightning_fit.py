"""Lightning: fit with validation, data module, several epochs, shutdown between them."""

import logging
import warnings

import lightning
import torch
from data import Pictures, make_model
from torch.nn import functional
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
# Lightning's own advice about few workers, the same with and without stoker.
warnings.filterwarnings("ignore", message=".*does not have many workers.*")


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def step(self, name, batch, number):
        pictures, labels = batch
        loss = functional.cross_entropy(self.model(pictures), labels)
        print(f"epoch {self.current_epoch} {name} {number} loss {loss.item()!r}")
        return loss

    def training_step(self, batch, number):
        return self.step("train", batch, number)

    def validation_step(self, batch, number):
        self.step("validation", batch, number)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(lightning.LightningDataModule):
    def __init__(self, workers):
        super().__init__()
        self.options = {"batch_size": 4, "num_workers": workers, "persistent_workers": workers > 0}

    def train_dataloader(self):
        return DataLoader(Pictures(), shuffle=True, **self.options)

    def val_dataloader(self):
        return DataLoader(Pictures(10), **self.options)


if __name__ == "__main__":
    for workers in (0, 2):
        print("workers", workers)
        lightning.seed_everything(3, verbose=False)
        trainer = lightning.Trainer(
            max_epochs=3,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=2,
        )
        trainer.fit(Classifier(), datamodule=Data(workers))
        trainer.validate(trainer.lightning_module, datamodule=Data(workers), verbose=False)
        print("stream", torch.rand(1).item())
