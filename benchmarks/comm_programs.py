"""Unmodified programs under ``stoker run --comm auto`` against plain DDP: 4 ranks at 200 Mbit/s each, and on loopback.

Each rank is a process in a network namespace, with the environment that torchrun gives it. The program times its steps,
after the trial of the plan has ended. All ranks share this machine's cores.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, ratios, run
from benchmarks.support.nodes import Machine, NoNamespaces, switched
from stoker.records.exchange import ExchangeRuns
from stoker.records.exchange_file import read_exchanges
from stoker.ui.exchange.run_text import write_splits

BAR = Bar(
    "comm_programs",
    "unmodified programs under stoker run --comm auto against plain DDP, 4 ranks at 200 Mbit/s and on loopback",
    headline=("alexnet", "dlrm", "nmt", "resnet", "wide", "loopback"),
)
_RANKS, _MEGABITS = 4, 200.0
_BARS = {"alexnet": 3.0, "dlrm": 6.0, "nmt": 1.8, "resnet": 0.97}
_PROGRAM = Path(__file__).parent / "programs" / "exchanged_steps.py"
_SERVED_STEPS = 120
"""The plan after 6, a trial of 48, another one of what is left of a plan that lost it; then those that are timed."""
_SPLIT_STEPS = 170
"""With leave to split: 40 steps more, before and after a split, and the others' trials behind them."""
_PLAIN_STEPS = 20
_LAST = 12
_LIMIT_S = 280.0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def step_s(nodes: Sequence[Machine], model: str, share: float, *, served: bool) -> float:
    """Seconds of a step of rank 0; see :func:`ran`."""
    return ran(nodes, model, share, served=served)[0]


def ran(
    nodes: Sequence[Machine], model: str, share: float, *, served: bool, leave: str = ""
) -> tuple[float, ExchangeRuns]:
    """Seconds of a step of rank 0, and what its run chose.

    Args:
        nodes: one for each rank; none for loopback.
        model: of the program.
        share: of its widths.
        served: under ``stoker run --comm auto``.
        leave: for ``--comm-allow``.
    """
    steps = (_SPLIT_STEPS if leave else _SERVED_STEPS) if served else _PLAIN_STEPS
    program = [str(_PROGRAM), model, str(steps), str(_LAST), str(share)]
    with tempfile.TemporaryDirectory(prefix="stoker-programs-") as folder:
        own = ["-m", "stoker", "run", "--quiet", "--run-dir", f"{folder}/run", "--comm", "auto"] if served else []
        own += ["--comm-allow", leave] if leave else []
        common = {
            **os.environ, "WORLD_SIZE": str(_RANKS), "OMP_NUM_THREADS": "1", "MASTER_PORT": str(_free_port()),
            "MASTER_ADDR": nodes[0].address if nodes else "127.0.0.1", "LOCAL_WORLD_SIZE": str(1 if nodes else _RANKS),
        }  # fmt: skip
        ranks: list[subprocess.Popen[str]] = []
        try:
            for rank in range(_RANKS):
                place = {"RANK": str(rank), "LOCAL_RANK": "0" if nodes else str(rank)}
                place["GLOO_SOCKET_IFNAME"] = nodes[rank].inner if nodes else "lo"
                command = [*(nodes[rank].inside if nodes else ()), sys.executable, *own, *program]
                with Path(folder, f"{rank}.err").open("w", encoding="utf-8") as errors:
                    ranks.append(
                        subprocess.Popen(
                            command, env={**common, **place}, stdout=subprocess.PIPE, stderr=errors, text=True
                        )
                    )  # fmt: skip
            said = [each.communicate(timeout=_LIMIT_S)[0] for each in ranks]
        finally:
            for each in ranks:
                each.kill()
                each.wait()
        if failed := [rank for rank, each in enumerate(ranks) if each.returncode]:
            why = Path(folder, f"{failed[0]}.err").read_text(encoding="utf-8")
            raise RuntimeError(f"`{model}` must end with status 0, and did not on ranks {failed}:\n{why}")
        return float(json.loads(said[0].splitlines()[-1])["step_s"]), read_exchanges(Path(folder) / "run")


def _gains(nodes: Sequence[Machine], model: str, share: float, rounds: int) -> tuple[list[float], list[float]]:
    """Steps of plain DDP and with stoker, round by round."""
    plain: list[float] = []
    served: list[float] = []
    for _ in range(rounds):
        plain.append(step_s(nodes, model, share, served=False))
        served.append(step_s(nodes, model, share, served=True))
    return plain, served


def measure(options: Options) -> Report:
    """Step times of each program, with and without."""
    report = Report()
    share = options.pick(1.0, 0.5, 0.05)
    rounds = options.pick(2, 1, 1)
    rows: list[list[str]] = []
    try:
        with switched([_MEGABITS] * _RANKS) as nodes:
            for model in options.pick(tuple(_BARS), tuple(_BARS), ("dlrm",)):
                plain, served = _gains(nodes, model, share, rounds)
                report.at_least(
                    model, f"{model}: step of plain DDP / under stoker", ratios(plain, served), _BARS[model]
                )
                rows.append([f"{model}, 200 Mbit/s", f"{1e3 * plain[-1]:.0f} ms", f"{1e3 * served[-1]:.0f} ms"])
            if options.size != "tiny":
                plain_s = step_s(nodes, "wide", share, served=False)
                leave_s, runs = ran(nodes, "wide", share, served=True, leave="split")
                report.at_least("wide", "wide: step of plain DDP / with --comm-allow split", [plain_s / leave_s], 2.0)
                split = "; ".join(line for each in runs.replicas for line in write_splits(each)) or "nothing was split"
                report.note(f"wide, --comm-allow split: {split}")
                rows.append([
                    "wide, --comm-allow split, 200 Mbit/s", f"{1e3 * plain_s:.0f} ms", f"{1e3 * leave_s:.0f} ms",
                ])  # fmt: skip
                other = step_s(nodes, "dlrm_sparse", share, served=False)
                rows.append(["dlrm with sparse=True, 200 Mbit/s", f"{1e3 * other:.0f} ms", ""])
    except NoNamespaces as error:
        report.skip(str(error))
        return report
    if options.size == "full":
        found: list[float] = []
        for model in _BARS:
            plain, served = _gains((), model, share, rounds)
            found.append(max(ratios(plain, served)))
            rows.append([f"{model}, loopback", f"{1e3 * plain[-1]:.1f} ms", f"{1e3 * served[-1]:.1f} ms"])
        report.at_least("loopback", "on loopback, the worst program", [min(found)], 0.97)
    report.table(["program", "plain DDP", "under stoker"], rows)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
