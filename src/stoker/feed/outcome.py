"""What asking for the next batch can bring beside a batch."""

from __future__ import annotations

import pickle
from typing import Any, NoReturn, cast

from stoker.feed.program import WorkItem
from stoker.feed.quarantine import path_of


class IterationEnd(Exception):
    """The iteration has no further item. Not ``StopIteration``, which the user's own code may raise."""


class FailedItem:
    """Stands for a batch whose making raised: raises it again in the training process."""

    def __init__(self, body: bytes, seq: int, work: WorkItem) -> None:
        self._body = body
        self._seq = seq
        self.work = work

    def reraise(self, dataset: Any) -> NoReturn:
        """Raises the user's exception with its original type and a note that names the sample; never returns."""
        wrapper, position = pickle.loads(self._body)
        try:
            wrapper.reraise()
        except Exception as error:
            indices: Any = self.work.indices
            if isinstance(indices, list) and position >= 0:
                index = cast("list[Any]", indices)[position]
                path = path_of(dataset, index)
                where = f" ({path})" if path else ""
                error.add_note(f"stoker: raised by sample {index!r}{where}, number {position} of batch {self._seq}")
            raise
        raise AssertionError("an exception that came from a worker was not one")
