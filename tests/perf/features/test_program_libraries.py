"""`stoker perf features` on programs that a library runs: Lightning, and the Trainer of Hugging Face."""

import sys
from pathlib import Path

import pytest

from stoker.perf.features.records import StepFeatures
from tests.warm import programs

pytestmark = pytest.mark.integration

LIGHTNING = """
import lightning, torch
from torch import nn
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.inner(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
trainer = lightning.Trainer(max_epochs=1, precision="bf16-mixed", enable_checkpointing=False, logger=False)
trainer.fit(Model(), torch.utils.data.DataLoader(data, 16))
"""
TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100, n_positions=16))
tokens = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(32)]
arguments = TrainingArguments(
    "out", max_steps=4, per_device_train_batch_size=4, bf16=True, report_to=[], gradient_accumulation_steps=2
)
Trainer(model, arguments, train_dataset=tokens).train()
"""


def features(folder: Path, program: str) -> StepFeatures:
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "stoker", "perf", "features", "--json", "f.json", "train.py"]
    ended = programs.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=110)
    assert ended.returncode == 0, ended.stderr
    return StepFeatures.from_json((folder / "f.json").read_bytes())


@pytest.mark.slow("imports Lightning")
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    found = features(tmp_path, LIGHTNING)
    assert (found.batch_size, found.weights.count) == (16, 8 * 4 + 4)
    assert {o.dtype for o in found.operations if o.kind == "matmul"} == {"bfloat16"}
    assert found.weights.optimizer_bytes == found.weights.bytes
    assert {layer.module for layer in found.layers} >= {"inner"}


@pytest.mark.slow("transformers is loaded, and a training is traced")
def test_trainer_with_accumulation(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    found = features(tmp_path, TRAINER)
    assert (found.batch_size, found.micro_batches) == (8, 2)
    assert {o.dtype for o in found.operations if o.kind == "attention"} == {"bfloat16"}
    assert found.weights.dense_gradient_bytes + found.weights.embedding_gradient_bytes == found.weights.bytes
