"""A process that has joined the cluster and evaluates what the tests ask: Ray stays out of theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_LOOP = """
import json, os, sys, time, traceback
import msgspec
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Ray prints there that a worker was killed
from stoker.backends.ray import joining
joining.connect()
import ray
from stoker.backends.ray.allocator.client import AllocatorClient, GrantedCpus, find_or_start
from stoker.backends.ray.allocator.jobs import Jobs
from stoker.backends.ray.allocator.launch import SubmittedProgram
from stoker.backends.ray.allocator.settings import AllocatorConfig
from stoker.scale.cluster import GangConfig, JobReport, LedgerConfig, QueueWindow
from stoker.scale.cluster.controls import ControlChange
from stoker.scale.cluster.submissions import Submission
for line in sys.stdin:
    source = json.loads(line)
    try:
        try:
            found = [True, msgspec.to_builtins(eval(source, globals()), str_keys=True)]
        except SyntaxError:
            exec(source, globals())
            found = [True, None]
    except Exception as error:
        found = [False, traceback.format_exc()]
    print(json.dumps(found), file=answers, flush=True)
"""


class Driver:
    """Evaluates expressions, or executes statements, in a process of the cluster; results as JSON has them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ) | {**environ},
            text=True,
        )

    def __call__(self, source: str) -> Any:
        self.send(source)
        return self.receive()

    def send(self, source: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(source) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        succeeded, found = json.loads(self._process.stdout.readline())
        assert succeeded, found
        return found

    def close(self) -> None:
        self._process.communicate()
