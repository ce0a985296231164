"""Lightning trains the blocks of `fitted`: its own loop, closures, and checkpoint. Argument: where to write."""

import json
import logging
import sys
import warnings

import lightning
import torch
from fitted import Block
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message=".*does not have many workers.*")


class Classifier(lightning.LightningModule):
    """The blocks, with the loss of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(*[Block(64) for _ in range(5)], nn.Linear(64, 10))
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        """The loss of a batch."""
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        """The loss of a batch that is not trained on."""
        self.losses.append(nn.functional.cross_entropy(self.model(batch[0]), batch[1]).item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer, which Lightning wraps."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(512 * 6, 64), torch.randint(10, (512 * 6,)))
    held_out = TensorDataset(torch.randn(64, 64), torch.randint(10, (64,)))
    model = Classifier()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, batch_size=512), DataLoader(held_out, batch_size=64))
    trainer.save_checkpoint(sys.argv[1] + ".pt")
    with open(sys.argv[1] + ".json", "w") as file:
        json.dump({"losses": model.losses}, file)
