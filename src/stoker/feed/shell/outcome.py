"""Outcomes of a request for the next batch, other than a batch."""

from __future__ import annotations

import pickle
from typing import Any, NoReturn, cast

from stoker.feed.program import WorkItem
from stoker.feed.shell.quarantine import path_of


class IterationEnd(Exception):
    """The iteration has no further item. Not ``StopIteration``, which the user's own code may raise."""


class FailedItem:
    """Stands for a batch that could not be made: raises its exception again in the training process."""

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
            if not isinstance(error, (wrapper.exc_type, RuntimeError)):
                # torch could not rebuild the exception (an exception group, say) and has lost its message
                text = f"Caught {wrapper.exc_type.__name__} {wrapper.where}.\nOriginal {wrapper.exc_msg}"
                error = RuntimeError(text)
            self._name_sample(error, dataset, position)
            raise error from None
        raise AssertionError("an exception that came from a worker was not one")

    def _name_sample(self, error: Exception, dataset: Any, position: int) -> None:
        if position < 0:  # the batch as a whole
            return
        indices: Any = self.work.indices
        batched = isinstance(indices, list)
        index = cast("list[Any]", indices)[position] if batched else indices
        if index is None:  # a stream
            return
        path = path_of(dataset, index)
        where = f" ({path})" if path else ""
        place = f"number {position} of batch {self._seq}" if batched else f"item {self._seq}"
        error.add_note(f"stoker: raised by sample {index!r}{where}, {place}")
