import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.records.exchange import LayerMethod
from stoker.train.exchanging.layout import PlacedWeight, laid_out

weights = st.builds(
    lambda m, n, plain: PlacedWeight("", m * n, (m, n), torch.float32, plain),
    st.integers(0, 5), st.integers(1, 5), st.booleans(),
)  # fmt: skip
methods = st.sampled_from(["all_reduce", "late", "rows", "half", "ring", ""])


@given(st.lists(st.tuples(weights, methods), max_size=8))
def test_each_element_goes_one_way(drawn: list[tuple[PlacedWeight, str]]) -> None:
    named = [
        PlacedWeight(str(place), each.size, each.shape, each.kind, each.is_plain)
        for place, (each, _) in enumerate(drawn)
        if each.size
    ]
    plan = {
        str(place): LayerMethod(module="", weight=str(place), method=method, rows=3)
        for place, (_, method) in enumerate(drawn)
        if method and method != "all_reduce"
    }
    found = laid_out(named, plan)
    covered = sorted(
        [*((s.start, s.stop) for s in found.segments), *(each for ranges in found.sums.values() for each in ranges)]
    )
    assert found.size == sum(each.size for each in named)
    assert sum(stop - start for start, stop in covered) == found.size
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(covered))
    plain = {each.name: each.is_plain for each in named}
    assert all(plain[s.name] for s in found.segments)
    assert found.is_whole == (not found.segments and set(found.sums) <= {"all_reduce"})
