"""`stoker perf features` on programs as people write them: what they print, save and evaluate between two steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.errors import TracingError
from stoker.perf.features.program import characterise_program
from stoker.perf.features.records import StepFeatures

pytestmark = pytest.mark.integration

ADVERSARIAL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
makes, judges = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64)), nn.Linear(64, 1)
of_maker, of_judge = torch.optim.Adam(makes.parameters()), torch.optim.Adam(judges.parameters())
loss = nn.functional.binary_cross_entropy_with_logits
for real, in DataLoader(TensorDataset(torch.randn(64, 64)), 16):
    of_judge.zero_grad()
    loss(judges(real), torch.ones(16, 1)).backward()
    fake = makes(torch.randn(16, 8))
    loss(judges(fake.detach()), torch.zeros(16, 1)).backward()
    of_judge.step()
    of_maker.zero_grad()
    loss(judges(fake), torch.ones(16, 1)).backward()
    of_maker.step()
"""
TALKS = """
import math
import numpy as np
import torch
from torch import nn
model = nn.Linear(16, 4)
if STARTS:
    model.load_state_dict(torch.load("start.pt"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for number in range(4):
    out = model(torch.randn(8, 16))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(loss) or torch.isnan(out).any() or not math.isfinite(norm):
        raise RuntimeError("the loss is not finite")
    optimizer.step()
    print(f"{number} loss {loss:.3f} norm {norm:8.2e} {loss}")
    seen.append(out.argmax(1).cpu().numpy())
    print(np.concatenate(seen).shape, np.asarray(out.detach(), dtype=np.float64).mean(), out.tolist()[0])
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
"""
GRAPH = """
import torch
from torch import nn
class Gathers(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.others = nn.Linear(32, 8), nn.Linear(32, 8, bias=False)
    def forward(self, x, edges):
        gathered = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
        degree = torch.zeros(len(x)).scatter_add_(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1)
        return self.own(x) + self.others(gathered / degree.unsqueeze(1))
x, edges = torch.randn(200, 32), torch.randint(200, (2, 900))
labels, known = torch.randint(8, (200,)), torch.rand(200) < 0.5
model = Gathers()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    model.train()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x, edges)[known], labels[known]).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        print((model(x, edges).argmax(1) == labels).float().mean().item())
"""
CLICKS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
tables = nn.ModuleList(nn.EmbeddingBag(1000, 16, mode="sum", sparse=True) for _ in range(3))
top = nn.Linear(48, 1)
dense, sparse = torch.optim.SGD(top.parameters(), 0.1), torch.optim.SparseAdam(tables.parameters())
for ids, clicked in DataLoader(TensorDataset(torch.randint(1000, (256, 3, 2)), torch.rand(256)), 32):
    mixed = torch.distributions.Beta(0.2, 0.2).sample()
    found = top(torch.cat([table(ids[:, place]) for place, table in enumerate(tables)], 1)).squeeze(1)
    loss = nn.functional.binary_cross_entropy_with_logits(found, clicked) * mixed
    dense.zero_grad()
    sparse.zero_grad()
    loss.backward()
    dense.step()
    sparse.step()
"""
OF_A_PACKAGE = """
import argparse, os, sys
import torch
from .sizes import WIDTH
assert __name__ == "__main__" and sys.modules["__main__"].WIDTH == 24 and __package__ == "own"
assert os.path.samefile(sys.argv[0], __file__)
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int)
rows = parser.parse_args().rows
model = torch.nn.Linear(WIDTH, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(rows, WIDTH)).sum().backward()
    optimizer.step()
"""
TIED = """
import torch
from torch import nn
table, inner = nn.Embedding(100, 16), nn.Linear(16, 16)
optimizer = torch.optim.Adam([*table.parameters(), *inner.parameters()])
for _ in range(2):
    tokens = torch.randint(100, (4, 8))
    out = inner(table(tokens)) @ table.weight.t()
    nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
"""


def features(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> StepFeatures:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(program)
    return characterise_program(["train.py"])


@pytest.mark.slow("starts python and torch twice, as `stoker perf features` does")
def test_a_module_is_run_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "sizes.py").write_text("WIDTH = 24")
    (tmp_path / "own" / "train.py").write_text(OF_A_PACKAGE)
    found = characterise_program(["-m", "own.train", "--rows", "12"])
    assert (found.name, found.batch_size, found.weights.count) == ("own.train", 12, 25)
    with pytest.raises(TracingError, match=r"`-m own.trains` ended with status 1 before its second optimizer step"):
        characterise_program(["-m", "own.trains"])


@pytest.mark.usefixtures("warm_pythons")
def test_two_networks_and_two_optimizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step goes from one step of the first optimizer to its next, the other's in between."""
    found = features(tmp_path, monkeypatch, ADVERSARIAL)
    assert (found.batch_size, found.micro_batches) == (16, 1)
    maker, judge = 8 * 32 + 32 * 64, 64
    assert found.matrix_flops("forward") == 2 * 16 * (maker + 3 * judge)
    # Weight gradients of three passes; those of inputs: to the fakes, and inside of the maker.
    assert found.matrix_flops("backward") == 2 * 16 * (maker + 3 * judge + judge + 32 * 64)
    assert found.weights.count == maker + 32 + 64 + judge + 1
    assert found.weights.optimizer_bytes == 2 * found.weights.bytes
    assert not [o for o in found.operations if o.phase == "optimizer" and o.kind == "fill"], "states are made before"


@pytest.mark.usefixtures("warm_pythons")
@pytest.mark.parametrize("starts", [False, True])
def test_a_program_that_prints_checks_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool) -> None:
    import torch
    from torch import nn

    torch.save(nn.Linear(16, 4).state_dict(), tmp_path / "start.pt")
    (tmp_path / "best.pt").write_bytes(b"a good checkpoint")
    found = features(tmp_path, monkeypatch, TALKS.replace("STARTS", str(starts)))
    assert (tmp_path / "best.pt").read_bytes() == b"a good checkpoint"
    assert "`torch.save` wrote nothing" in found.assumptions
    assert found.matrix_flops("forward") == 2 * 8 * 16 * 4
    assert any(
        line.startswith("computed numbers, such as losses to print, were taken as 1") for line in found.assumptions
    )


@pytest.mark.usefixtures("warm_pythons")
def test_what_is_evaluated_between_steps_is_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = features(tmp_path, monkeypatch, GRAPH)
    assert (found.batch_size, found.micro_batches) == (200, 1)
    # It is work of the step, all the same.
    assert found.matrix_flops("forward") == 2 * (2 * 200 * 2 * 32 * 8)
    assert found.matrix_flops("backward") == 2 * 200 * 2 * 32 * 8
    assert not found.unknown


@pytest.mark.usefixtures("warm_pythons")
def test_sparse_gradients_with_their_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = features(tmp_path, monkeypatch, CLICKS)
    assert not found.unknown
    assert found.weights.embedding_count == 3 * 1000 * 16
    assert found.weights.embedding_touched_bytes == 32 * 3 * 2 * 16 * 4
    assert found.weights.optimizer_bytes == 2 * found.weights.embedding_bytes


@pytest.mark.usefixtures("warm_pythons")
def test_a_tied_table_is_dense_and_looked_up_rows_are_not_sent_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = features(tmp_path, monkeypatch, TIED).weights
    assert (weights.embedding_count, weights.embedding_touched_bytes) == (0, 0)
    assert weights.dense_count == 100 * 16 + 16 * 16 + 16
