"""The errors that end an iteration."""

from __future__ import annotations

from stoker.core.errors import StreamNotRepeatableError, WorkerLostError, dead_worker


def too_many_losses(pid: int, count: int, cause: str) -> WorkerLostError:
    """So many workers were lost in a row; the last one had this process id and ended for this cause."""
    return WorkerLostError(
        f"{dead_worker(pid)}: {count} data workers were lost in a row without finishing an item, the last one {cause}; "
        "run with --workers 0 to see the cause in the training process"
    )


def not_repeatable(pid: int, seq: int, worker: int) -> StreamNotRepeatableError:
    """The successor of a lost worker (with this process id) made an item again, and it came out different."""
    return StreamNotRepeatableError(
        f"{dead_worker(pid)}, and item {seq} came out different when its successor, data worker {worker}, made it "
        "again; the dataset depends on more than its arguments and seeds, so the batches already delivered can't be "
        "told from those still due. Make the stream repeatable: let it depend on its files and seeds alone"
    )
