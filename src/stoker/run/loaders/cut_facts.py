"""What ``stoker.cut(loader)`` returns: the current cut of one loader's steps."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule
from torch.utils.data import DataLoader

from stoker.graph.cut_control import CutVerdict
from stoker.graph.replay.module import to_module
from stoker.records.events import CutChosen
from stoker.run.loaders import patch
from stoker.run.loaders.api import serving_of_process, wrap
from stoker.run.loaders.cutting import record_of
from stoker.run.loaders.serving import Serving
from stoker.ui.graph_svg import render_svg
from stoker.ui.graph_text import render_graph


class LoaderCut:
    """The cut of one loader's steps; every access reads the current state.

    The cut appears after about six steps of the program, the measured gain some sixty steps later.
    """

    def __init__(self, loader: DataLoader[Any], serving: Serving) -> None:
        self._loader = loader
        self._serving = serving

    @property
    def verdicts(self) -> list[CutChosen]:
        """One record for each kind of step (training, a last short batch, …), in the order of appearance."""
        return [record_of(verdict, 0, self._serving.now_s()) for verdict in self._found()]

    @property
    def outcome(self) -> str:
        """``moved``, ``stayed``, ``reverted``, or empty while nothing is decided; of the kind that saves most."""
        best = self._best()
        return best.outcome if best is not None else ""

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        best = self._best()
        return best.reason if best is not None else "too few steps so far"

    def graph_module(self, variant: int = 0) -> GraphModule:
        """The stateless calls of one kind of step as a module that takes the tensors of a batch.

        Raises:
            LookupError: no such kind was recorded so far.
        """
        for verdict in self._found():
            if verdict.variant == variant:
                return to_module(verdict.recording)
        raise LookupError(f"`variant` {variant} was not recorded so far; known: {[v.variant for v in self._found()]}")

    def _found(self) -> list[CutVerdict]:
        feed, cutting = self._serving.known_feed(self._loader), self._serving.cutting
        return cutting.verdicts(feed.number) if feed is not None and cutting is not None else []

    def _best(self) -> CutVerdict | None:
        found = self._found()
        return max(found, key=lambda v: (v.outcome == "moved", v.cut.saved_s), default=None)

    def __str__(self) -> str:
        best = self._best()
        if best is None:
            return f"LoaderCut: {self.reason}"
        return render_graph(record_of(best, 0, self._serving.now_s()))

    def __repr__(self) -> str:
        return f"<LoaderCut {self.outcome or 'undecided'}: {self.reason}>"

    def _repr_html_(self) -> str:
        best = self._best()
        if best is None:
            return f"<pre>{self.reason}</pre>"
        return render_svg(record_of(best, 0, self._serving.now_s()), inline=True)


def cut(loader: DataLoader[Any]) -> LoaderCut:
    """Has one loader served, as :func:`stoker.wrap` does, and shows the cut of its steps.

    What depends on the batch alone in the loop over ``loader`` is found, measured and moved to its data workers, with
    bit-identical results; nothing has to be marked.

    Raises:
        TypeError: ``loader`` is no DataLoader, or one that makes its iterators in its own way.
    """
    serving = patch.serving_of(wrap(loader)) or serving_of_process()
    return LoaderCut(loader, serving)
