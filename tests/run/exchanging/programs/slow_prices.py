"""Runs a program whose exchange is priced as if its link were slow: on this machine no plan would name a split.

Steps, bytes and all that the ranks do are real. Arguments: the least gain of a trial, the program, its arguments.
"""

import runpy
import sys

import torch  # noqa: F401 - with it stoker begins to serve the process, before the names below are planted
from msgspec.structs import replace

from stoker.perf.planning.measured_exchange import planned_exchange
from stoker.run.exchanging import serving
from stoker.train.splitting.running.split_trial import SplitTrial

SECONDS_PER_BYTE = 1e-6
SUMS = [(float(size), 1e-3 + size * SECONDS_PER_BYTE) for size in (4_096, 65_536, 1 << 20)]


def priced(measured, **how):
    return planned_exchange([replace(each, sums=SUMS, links=None) for each in measured], **{**how, "has_ring": False})


if __name__ == "__main__":
    SplitTrial.LEAST_GAIN, SplitTrial.STEPS = float(sys.argv[1]), 4
    serving.planned_exchange = priced
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
