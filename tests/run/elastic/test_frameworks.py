"""Checkpoints as frameworks write and read them: noticed once they are complete, and known when training continues."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stoker.records import events  # noqa: E402
from tests.run.elastic.test_checkpoints import Program  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow("imports a framework, and has it train twice"),
    # The frameworks' own, about few workers, no logger and what comes to be removed.
    pytest.mark.filterwarnings("ignore"),
]
Rows = torch.utils.data.TensorDataset


def rows() -> Any:
    return Rows(torch.arange(48.0).reshape(24, 2), torch.ones(24, 1))


def with_lightning(folder: Path, again: bool) -> None:
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return (self.line(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(
        max_epochs=2 + again,
        accelerator="cpu",
        logger=False,
        callbacks=[ModelCheckpoint(dirpath=folder, save_last=True, every_n_epochs=1)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(rows(), batch_size=8)
    trainer.fit(Line(), loader, ckpt_path=str(folder / "last.ckpt") if again else None)


def with_trainer(folder: Path, again: bool) -> None:
    transformers = pytest.importorskip("transformers")

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(2, 1)

        def forward(self, x: Any, y: Any) -> Any:
            return {"loss": (self.line(x) - y).square().mean()}

    def collate(samples: Any) -> Any:
        x, y = zip(*samples, strict=True)
        return {"x": torch.stack(x), "y": torch.stack(y)}

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=2 + again, per_device_train_batch_size=8, save_strategy="epoch",
        report_to=[], disable_tqdm=True, logging_strategy="no", use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(model=Line(), args=arguments, train_dataset=rows(), data_collator=collate)
    trainer.train(resume_from_checkpoint=again)


def with_accelerate(folder: Path, again: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    line = torch.nn.Linear(2, 1)
    model, optimizer, loader = accelerator.prepare(
        line, torch.optim.Adam(line.parameters()), torch.utils.data.DataLoader(rows(), batch_size=8)
    )
    if again:
        accelerator.load_state(str(folder / "state"))
    for _ in range(2):
        for x, y in loader:
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        accelerator.save_state(str(folder / "state"))


@pytest.mark.parametrize("train", [with_lightning, with_trainer, with_accelerate])
def test_a_framework(train: Callable[[Path, bool], None], tmp_path: Path) -> None:
    found: list[list[events.AnyEvent]] = []
    for again in (False, True):
        program = Program(tmp_path)
        program.watch.install()
        try:
            with warnings.catch_warnings():
                train(tmp_path / "saved", again)
        finally:
            program.watch.remove()
        found.append(program.events)
    for number, records in enumerate(found):
        started = [record for record in records if isinstance(record, events.TrainingStarted)]
        assert [record.resumed for record in started] == [number == 1]
    saved = [record for record in found[0] if isinstance(record, events.CheckpointSaved)]
    assert [record.steps_since for record in saved] == [1], "that of the first epoch; none follows that of the last"
