"""`stoker perf features` on unmodified programs, in real processes."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from stoker.perf.features.records import StepFeatures
from stoker.perf.fleet.reading import read_fleet
from tests.warm import programs

pytestmark = pytest.mark.integration

PROGRAMS = {
    "replicas": """
import os, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).cuda(local)
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = nn.parallel.DistributedDataParallel(torch.compile(model), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
scaler = torch.amp.GradScaler("cuda")
data = TensorDataset(torch.randn(96, 8), torch.randint(4, (96,)))
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
for number, (x, y) in enumerate(DataLoader(data, 16, num_workers=2, pin_memory=True, sampler=DistributedSampler(data))):
    begin.record()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x.to("cuda", non_blocking=True)), y.cuda())
    scaler.scale(loss / 2).backward()
    if number % 2:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        end.record()
        torch.cuda.synchronize()
        print(total.item(), begin.elapsed_time(end), torch.cuda.max_memory_allocated())
""",
    "sharded": """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
first = FullyShardedDataParallel(nn.Linear(64, 32), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
second = nn.Linear(32, 8)
fully_shard(second, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
model = nn.Sequential(first, second)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    first.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
    "speech": """
import torch
from torch import nn
class Hears(nn.Module):
    def __init__(self):
        super().__init__()
        self.heard, self.said = nn.LSTM(40, 32, batch_first=True), nn.Linear(32, 30)
        self.wide = nn.Parameter(torch.randn(40_000, 2_000))
    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        found, _ = nn.utils.rnn.pad_packed_sequence(self.heard(packed)[0], batch_first=True)
        return self.said(found).log_softmax(-1) + self.wide.mean()
model = Hears().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    lengths, targets = torch.tensor([50, 30]), torch.randint(1, 30, (2, 12)).cuda()
    found = model(torch.randn(2, 50, 40, device="cuda"), lengths)
    loss = nn.functional.ctc_loss(found.transpose(0, 1), targets, lengths, torch.tensor([12, 9]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "photographs": """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model = model.cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(32, 3, 24, 24), torch.randint(16, (32,))), 8):
    x = x.cuda().to(memory_format=torch.channels_last)
    nn.functional.cross_entropy(model(x), y.cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "aborts": "import os; os.abort()",
    "stops": "pass",
}


class Ended(NamedTuple):
    """A command that came to its end."""

    status: int
    out: str
    err: str
    folder: Path

    @property
    def features(self) -> StepFeatures:
        """What it found."""
        assert self.status == 0, self.err
        return StepFeatures.from_json((self.folder / "f.json").read_bytes())


def run(name: str, folder: Path) -> Ended:
    (folder / "train.py").write_text(PROGRAMS[name])
    command = [sys.executable, "-m", "stoker", "perf", "features", "--json", "f.json"]
    command += ["--csv", "jobs.csv", "--gpus", "4", "train.py"]
    done = programs.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=110)
    return Ended(done.returncode, done.stdout, done.stderr, folder)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ended]:
    """The command on a program, which runs once."""
    return functools.cache(lambda name: run(name, tmp_path_factory.mktemp(name)))


def test_replicas_with_mixed_precision_and_accumulation(ended: Callable[[str], Ended]) -> None:
    found = ended("replicas").features
    assert "train.py: one training step of 32 samples in 2 micro-batches, kernels of cuda" in ended("replicas").out
    assert (found.batch_size, found.micro_batches) == (32, 2)
    assert found.weights.count == 8 * 16 + 16 + 2 * 16 + 16 * 4 + 4
    assert found.input_bytes == 32 * (8 * 4 + 8)
    assert {o.dtype for o in found.operations if o.kind == "matmul"} == {"float16"}
    assert found.matrix_flops("forward") == 2 * 32 * (8 * 16 + 16 * 4)
    assert found.weights.optimizer_bytes == 2 * found.weights.bytes
    assert {layer.module for layer in found.layers} == {"", "0", "1", "2", "3"}  # not the wrapper's
    assert [o.eager_bytes for o in found.operations if o.kind == "communication"] == [8]
    assert any("DistributedDataParallel was taken as the module" in line for line in found.assumptions)
    assert any("losses to print, were taken as 1: train.py:" in line for line in found.assumptions)
    assert not found.unknown
    assert (found.compiled, found.channels_last) == (True, False)


def test_images_that_are_channels_last(ended: Callable[[str], Ended]) -> None:
    found = ended("photographs").features
    assert (found.compiled, found.channels_last) == (False, True)


def test_sharded_modules_are_whole_and_compute_in_their_precision(ended: Callable[[str], Ended]) -> None:
    found = ended("sharded").features
    assert {(o.module, o.dtype) for o in found.operations if o.kind == "matmul"} == {
        ("0", "bfloat16"),
        ("1", "bfloat16"),
    }
    assert found.weights.dense_bytes == 4 * (64 * 32 + 32 + 32 * 8 + 8)
    assert found.weights.dense_gradient_bytes == found.weights.dense_bytes
    assert found.batch_size == 16  # no loader: what the model is given
    assert any("fully_shard was taken as the whole module" in line for line in found.assumptions)


def test_sequences_of_known_lengths_and_large_weights(ended: Callable[[str], Ended]) -> None:
    found = ended("speech").features
    rnn = next(o for o in found.operations if o.name == "lstm")
    assert rnn.dims[0] == 80  # of 100: padding is not computed
    assert {o.name for o in found.operations if o.kind == "scan"} == {"_ctc_loss", "_ctc_loss_backward"}
    assert found.weights.count > 80_000_000
    assert not found.unknown


@pytest.mark.parametrize(
    ("name", "said"), [("aborts", "was killed by signal 6"), ("stops", "ended without an optimizer step")]
)
def test_a_program_without_steps_does_not_take_the_command_with_it(
    ended: Callable[[str], Ended], name: str, said: str
) -> None:
    assert ended(name).status == 2
    assert said in ended(name).err


def test_a_row_of_the_table_is_read_as_a_job(ended: Callable[[str], Ended]) -> None:
    found, fleet = ended("replicas").features, read_fleet(ended("replicas").folder / "jobs.csv")
    assert (len(fleet), fleet.num_gpus.tolist(), fleet.groups[fleet.group[0]]) == (1, [4.0], "AllReduce-Local")
    assert fleet.features is not None
    assert fleet.features.flops[0] == pytest.approx(found.matrix_flops(), rel=1e-6)
    assert fleet.features.traffic_bytes[0] == pytest.approx(1.5 * found.weights.dense_gradient_bytes)
    assert fleet.weight_bytes is not None
    assert fleet.weight_bytes[0] == pytest.approx(3 * found.weights.bytes)  # AdamW's two states
