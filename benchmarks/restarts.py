"""How often a job under torchrun recovers from a rank that is killed, under plain python and under stoker.

Not among the bars of ``make bench``: 30 trials each take half an hour, and what is seen is mostly torch's own. A
restarted rank may read from torchrun's store where its peer listened before the restart (pytorch issue 135712), and
whether it does is chance. Without sharing that store both must recover every time.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, alternate, run

BAR = Bar(
    "restarts",
    "jobs of two ranks under torchrun that go on after one is killed: plain python, stoker",
    headline=("recovered_plain", "recovered_stoker", "chance", "recovered_unshared"),
)
PROGRAM = textwrap.dedent(
    """
    import datetime, os, signal
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler

    class Rows(Dataset):
        def __len__(self):
            return 1280
        def __getitem__(self, i):
            return torch.full((16,), i / 1280), i % 4

    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
    rank, rows = dist.get_rank(), Rows()
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(rows, batch_size=16, sampler=DistributedSampler(rows), num_workers=2)
    for step, (inputs, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (life, rank, step) == (0, 1, 20):
            os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, f"life {life} rank {rank} ended after step {step}\\n".encode())  # both ranks write to one pipe
    dist.destroy_process_group()
    """
)
ENDED = {f"life 1 rank {rank} ended after step 39" for rank in (0, 1)}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
LAUNCHERS = {"plain": (sys.executable,), "stoker": (sys.executable, "-m", "stoker", "run", "--quiet")}
UNSHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_LONGEST_S = 240.0


def recovers(name: str, folder: Path, settings: Mapping[str, str]) -> bool:
    """Whether one job, launched that way, ends well after its restart."""
    script = folder / "train.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings}
    with subprocess.Popen(
        [*LAUNCHERS[name], *TORCHRUN, str(script)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as job:
        try:
            said, _ = job.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            job.terminate()  # torchrun ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(60.0)
            job.kill()
            return False
    return job.returncode == 0 and set(said.splitlines()) >= ENDED


def chance(fewer: int, more: int, trials: int) -> float:
    """How likely the first of two alike is to succeed so seldom or more seldom, for these successes in all.

    Source: Fisher's exact test, one side.
    """
    together = fewer + more
    least = max(0, together - trials)
    ways = [math.comb(trials, k) * math.comb(trials, together - k) for k in range(least, fewer + 1)]
    return sum(ways) / math.comb(2 * trials, together)


def measure(options: Options) -> Report:
    """Both launchers in alternation, as torchrun is by default; then some trials without the shared store."""
    report = Report()
    rounds, unshared = options.rounds, max(1, options.rounds // 3)
    with tempfile.TemporaryDirectory() as folder:
        shared = _trials(rounds, Path(folder), {})
        apart = _trials(unshared, Path(folder), UNSHARED)
    report.note(f"rank 1 of 2 is killed at step 20; {rounds} trials each, {unshared} without torchrun's shared store")
    rows = [
        [name, f"{sum(shared[name]):.0f} of {rounds}", f"{sum(apart[name]):.0f} of {unshared}"] for name in LAUNCHERS
    ]
    report.table(["jobs that recovered", "shared store (default)", "store not shared"], rows)
    for name in LAUNCHERS:
        report.figure(f"recovered_{name}", sum(shared[name]) / rounds)
    found = chance(int(sum(shared["stoker"])), int(sum(shared["plain"])), rounds)
    report.at_least("chance", "chance that stoker recovers so seldom if it adds nothing", [found], 0.05)
    share = sum(sum(apart[name]) for name in LAUNCHERS) / (len(LAUNCHERS) * unshared)
    report.at_least("recovered_unshared", "recovered without the shared store, both together", [share], 1.0)
    return report


def _trials(rounds: int, folder: Path, settings: Mapping[str, str]) -> dict[str, list[float]]:
    return alternate(rounds, {name: lambda name=name: float(recovers(name, folder, settings)) for name in LAUNCHERS})


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
