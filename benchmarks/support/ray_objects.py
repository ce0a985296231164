"""Batches through Ray's object store: from a slot of a process on one node into a slot of a process on another.

A process of its own, since it imports Ray: ``python -m benchmarks.support.ray_objects BYTES`` answers each line
``COUNT`` with the seconds that so many batches took.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from typing import Any

_AHEAD = 3
"""Batches under way, as many as a gateway has leases of here."""
_STORE_BATCHES = 12


@contextlib.contextmanager
def ray_objects(size: int) -> Generator[Callable[[int], float] | None]:
    """A function from a number of batches to the seconds they took; None where Ray is not installed."""
    if find_spec("ray") is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        os.mkdir(os.path.join(folder, "ray"))  # where Ray writes the address of a cluster in this process
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.support.ray_objects", str(size), folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder},
        )  # fmt: skip
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def take(count: int) -> float:
            asked.write(f"{count}\n")
            asked.flush()
            return float(answers.readline())

        try:
            answers.readline()
            yield take
        finally:
            asked.close()
            process.wait(timeout=60)


def main() -> None:
    """Serves counts on standard input until it ends."""
    import numpy as np
    import ray
    from ray.cluster_utils import Cluster

    size, folder = int(sys.argv[1]), sys.argv[2]
    store = max(80 * 2**20, _STORE_BATCHES * size)
    cluster: Any = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": store, "include_dashboard": False, "temp_dir": folder},
    )
    cluster.add_node(num_cpus=1, object_store_memory=store, resources={"other": 1})
    ray.init(address=cluster.address, log_to_driver=False)

    class Source:
        def __init__(self) -> None:
            self._slot = np.zeros(size, np.uint8)

        def batch(self) -> Any:
            return self._slot

    source: Any = ray.remote(resources={"other": 1})(Source).remote()
    slot = np.empty(size, np.uint8)

    def batches(count: int) -> Iterator[Any]:
        refs = [source.batch.remote() for _ in range(min(_AHEAD, count))]
        for number in range(count):
            ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=True)  # begins to fetch those behind as well
            yield ray.get(refs.pop(0))
            if number + _AHEAD < count:
                refs.append(source.batch.remote())

    print("ready", flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        for batch in batches(int(line)):
            slot[:] = batch
        print(time.perf_counter() - begun, flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
