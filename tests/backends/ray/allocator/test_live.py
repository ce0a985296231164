"""The allocator as an actor of a real cluster: found or started once, jobs that it runs, and its death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.ray.allocator.driver import Driver

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

STEPS = """
import os, signal, sys, time
from pathlib import Path
state = Path(sys.argv[1])
def checkpoint(*_):
    print("checkpoint", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, checkpoint)
begun = int(state.read_text()) if state.exists() else 0
print("from step", begun, "in", os.getcwd(), os.environ["OF_SUBMISSION"], flush=True)
for step in range(begun, int(sys.argv[2])):
    time.sleep(0.1)
    state.write_text(str(step + 1))
    if begun == 0 and sys.argv[3:]:
        time.sleep(600)  # until it is preempted
"""


def until(condition: Callable[[], Any], limit_s: float = 60.0) -> Any:
    deadline_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "not within its time"
        time.sleep(0.05)
    return found


class Queue:
    """Submits the program above, and says what became of it."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver, self.folder = driver, folder
        (folder / "steps.py").write_text(STEPS)
        driver("jobs = Jobs()")

    def submit(self, steps: int, words: tuple[str, ...] = (), **asked: object) -> int:
        name = f"state-{time.monotonic_ns()}"
        words = words or ("--quiet", "steps.py", name, str(steps), *(["hold"] if asked.get("resumable") else []))
        environ = dict(os.environ) | {"OF_SUBMISSION": "kept", "XDG_CONFIG_HOME": str(self.folder)}
        program = (
            f"SubmittedProgram(python={sys.executable!r}, words={words!r}, folder={str(self.folder)!r}, "
            f"environ={environ!r}, log_folder={str(self.folder / name) + '-logs'!r})"
        )
        asked_text = ", ".join(f"{key}={value!r}" for key, value in asked.items())
        return self.driver(f"jobs.submit(Submission({asked_text}), {program})")

    def job(self, number: int) -> dict[str, Any]:
        return self.driver(f"jobs.record({number})")["job"]

    def state(self, number: int) -> str:
        return self.job(number)["state"]

    def wait(self, number: int, *states: str) -> None:
        until(lambda: self.state(number) in states)

    def log(self, number: int) -> str:
        places = self.driver(f"jobs.record({number})")["logs"]
        return "".join(Path(place["path"]).read_text() for place in places)


@pytest.fixture
def queue(driver: Driver, tmp_path: Path) -> Iterator[Queue]:
    found = Queue(driver, tmp_path)
    yield found
    for record in driver("jobs.records()"):
        driver(f"jobs.cancel({record['job']['number']})")
    until(lambda: all(record["job"]["ended_s"] for record in driver("jobs.records()")))


@pytest.mark.slow("the first that needs Ray's daemons starts them")
def test_two_jobs_share_the_pool_and_keep_it_when_the_allocator_dies(driver: Driver) -> None:
    """The brokers of two users, as far as the allocator sees them; that it was started once is checked by its start."""
    driver(
        """
jobs = Jobs()
slowest_s = 0.0
def broker(name, need, user):
    held = {}
    client = AllocatorClient(name)
    def turn():
        global slowest_s
        cpus = sum(held.values())
        rate = min(1.0, cpus / need)
        window = QueueWindow(
            cpus=cpus, samples_per_s=100 * rate, starved_frac=float(rate < 1), computing_frac=rate,
            blocked_frac=max(0.0, 1.0 - need / cpus) if cpus else 0.0,
        )
        began_s = time.monotonic()
        orders = client.exchange(JobReport(job=name, held=dict(held), window=window, user=user))
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        for order in orders or ():
            held[order.node] = order.cpus
        return held
    return turn, client
(ann, ann_client), (bob, bob_client) = broker("ann's", 3, "ann"), broker("bob's", 20, "bob")
"""
    )

    def held() -> list[dict[str, int]]:
        return driver("[dict(ann()), dict(bob())]")

    until(lambda: [sum(each.values()) for each in held()] == [3, 5])
    before = held()
    # What people chose is kept, too: these quotas are what both have.
    assert driver("jobs.control(ControlChange(quotas={'ann': 3, 'bob': 5}, objective='fair'))")["grace_s"] is None
    pid = driver("jobs._ask('pid')")
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)

    def known() -> bool:
        assert held() == before
        answered = "not ray.wait([ref := handle.grants.remote()], timeout=0.2)[1]"
        return driver(f"{answered} and len(ray.get(ref)) == 2")

    until(known)
    restart_s = time.monotonic() - killed_s
    assert driver("jobs._ask('pid')") != pid
    assert driver("jobs.control(ControlChange())")["objective"] == "fair"
    # Quotas stay until both have left: without them "fair" gives all to who came first to the new allocator.
    for _ in range(20):
        assert held() == before
        time.sleep(0.1)
    assert driver("slowest_s") < restart_s / 2, "who reports never waits for the next one"
    driver("[ann_client.leave(), bob_client.leave()] and None")
    driver("jobs.control(ControlChange(quotas={'ann': None, 'bob': None}))")
    # As a broker asks: nothing is known at first, then what is free.
    assert driver("carl.ask(3, {}, [], []) if (carl := GrantedCpus('carl', 'carl')) else 0") is None
    until(lambda: sum((driver("carl.ask(3, {}, [], [])") or {}).values()) == 3)


@pytest.mark.slow("starts of four processes of Ray, one after another")
def test_jobs_are_preempted_survive_the_allocator_and_leave_nothing(queue: Queue) -> None:
    (queue.folder / "stubborn.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), flush=True)\nos.fork()\ntime.sleep(600)\n"
    )
    low = queue.submit(3, gpus=1, cpus=1.0, resumable=True)
    stubborn = queue.submit(1, ("--quiet", "stubborn.py"), gpus=1)
    pid = int(until(lambda: queue.state(stubborn) == "running" and queue.log(stubborn)))
    until(lambda: any(state.read_text() for state in queue.folder.glob("state-*[0-9]")))
    high = queue.submit(25, gpus=1, priority=1)
    queue.wait(high, "running")
    assert (queue.state(low), queue.job(low)["reason"]) == ("waiting", "no GPU")
    os.kill(queue.driver("jobs._ask('pid')"), signal.SIGKILL)
    # The next one finds it as it was, whether it still runs by then or not.
    assert (queue.state(high) in ("running", "done"), queue.job(high)["attempts"]) == (True, 1)
    queue.driver(f"jobs.cancel({stubborn})")
    assert queue.state(stubborn) == "stopping"
    for job in (high, low):
        queue.wait(job, "done", "failed")
    assert queue.log(high) == f"from step 0 in {queue.folder} kept\n"
    first, _, second = queue.log(low).partition("checkpoint\n")
    assert first == queue.log(high)
    assert second == first.replace("step 0", "step 1")
    queue.wait(stubborn, "cancelled")
    assert not Path(f"/proc/{pid}").exists()
    until(
        lambda: (
            queue.driver("[g['name'] for g in ray.util.placement_group_table().values() if g['state'] != 'REMOVED']")
            == []
        )
    )


@pytest.mark.exhaustive
@pytest.mark.slow("two ranks of torchrun import torch on nodes of their own, and commands join")
def test_two_users_submit_by_commands(gpu_cluster: dict[str, str], queue: Queue) -> None:
    (queue.folder / "ranks.py").write_text(
        "import os, torch.distributed as d\nd.init_process_group('gloo')\n"
        "print('rank', d.get_rank(), 'of', d.get_world_size(), flush=True)\nd.destroy_process_group()\n"
    )

    def stoker(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "stoker", *words], env=gpu_cluster, cwd=queue.folder, capture_output=True, text=True,
            timeout=90, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    status, out, err = stoker("submit", "--gpus", "2", "--user", "ann", "--", "--quiet", "ranks.py")
    assert (status, err) == (0, "")
    number = int(out.split()[1].rstrip(":"))
    other = queue.submit(1, gpus=1, user="bob")
    status, out, err = stoker("submit", "--gpus", "3", "--", "ranks.py")
    assert (status, out) == (2, "")
    assert "`--gpus` and `--cpus` must fit the cluster: 3 GPUs are more than the 2 of all nodes" in err
    status, out, _ = stoker("logs", str(number), "-f")
    assert status == 0
    assert all(f"rank {rank} of 2\n" in out for rank in range(2))
    queue.wait(other, "done", "failed")
    status, out, err = stoker("cluster", "set", "--priority", "ann=1")
    assert (status, err) == (0, "")
    assert "priority ann 1" in out
    status, out, _ = stoker("queue", "--json")
    rows = {row["job"]: row for row in json.loads(out)["jobs"]}
    assert json.loads(out)["controls"]["priorities"] == {"ann": 1}
    assert (rows[number]["user"], rows[number]["state"]) == ("ann", "done")
    assert (rows[other]["user"], rows[other]["state"], rows[other]["attempts"]) == ("bob", "done", 1)


PROGRAM = """
import time
import torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.tensor([index])
for batch in DataLoader(Slow(), 4, num_workers=1):
    time.sleep(0.001)
"""


@pytest.mark.exhaustive
@pytest.mark.slow("a program, its gateway, its broker, and a host import what they need")
def test_a_run_gets_its_cpus_from_the_allocator(driver: Driver, gpu_cluster: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = ("run", "--backend", "ray", "--workers", "1", "--remote-workers", "3", "--quiet", "train.py")
    with subprocess.Popen([sys.executable, "-m", "stoker", *words], cwd=tmp_path, env=gpu_cluster) as program:
        try:
            until(lambda: [sum(held.values()) for held in _held(driver, "train").values()] == [3], 60)
        finally:
            program.terminate()
    until(lambda: not _held(driver, "train"))


def _held(driver: Driver, prefix: str) -> dict[str, dict[str, int]]:
    found = driver("ray.get(handle.grants.remote())")
    return {job: report["held"] for job, (report, _) in found.items() if job.startswith(prefix)}
