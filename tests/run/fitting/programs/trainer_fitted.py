"""The Trainer of Hugging Face trains the blocks of `fitted`: it makes the optimizer. Argument: where to write."""

import json
import sys
from pathlib import Path

import torch
from fitted import Block
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments


class Classifier(nn.Module):
    """The blocks, with the loss of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(*[Block(64) for _ in range(5)], nn.Linear(64, 10))
        self.losses: list[float] = []

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss and outputs."""
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, labels)
        self.losses.append(loss.item())
        return {"loss": loss, "logits": logits}


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Classifier()
    data = [{"x": torch.randn(64), "labels": torch.randint(10, ())} for _ in range(512 * 6)]
    folder = Path(sys.argv[1])
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=512, learning_rate=1e-2,
        save_strategy="steps", save_steps=6, report_to=[], disable_tqdm=True, log_level="error",
        logging_strategy="no", use_cpu=True, seed=3, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    states = torch.load(folder / "checkpoint-6" / "optimizer.pt")
    torch.save({"model": model.state_dict(), "optimizer": states}, sys.argv[1] + ".pt")
    with open(sys.argv[1] + ".json", "w") as file:
        json.dump({"losses": model.losses}, file)
