"""Small drawn models with their links, for properties of plans."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from benchmarks.programs.drawn_exchanges import drawn
from stoker.perf.communication.methods import GradientLayer, Terms
from stoker.perf.communication.replicas import Shard


@st.composite
def steps(draw: st.DrawFn, layers: int = 7) -> tuple[Shard, list[GradientLayer], Terms]:
    """A model of at most so many layers."""
    return drawn(random.Random(draw(st.integers(0, 1 << 32))), draw(st.integers(1, layers)))
