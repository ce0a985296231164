"""What people choose for a live cluster: changes name what they change, and a ledger follows them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.scale.cluster import ClusterNode, GrantLedger, JobReport, LedgerConfig
from stoker.scale.cluster.controls import LIVE_OBJECTIVES, ClusterControls, ControlChange

users = st.sampled_from(["ann", "bob", "cy"])
changes = st.builds(
    ControlChange,
    objective=st.none() | st.sampled_from(LIVE_OBJECTIVES),
    grace_s=st.none() | st.floats(0.1, 100.0),
    floor_frac=st.none() | st.floats(0.0, 1.0),
    quotas=st.dictionaries(users, st.none() | st.integers(0, 64)),
    weights=st.dictionaries(users, st.none() | st.floats(0.1, 9.0)),
    priorities=st.dictionaries(users, st.none() | st.integers(-3, 3)),
)


@given(st.lists(changes, max_size=5), changes)
def test_a_change_changes_what_it_names_and_is_kept_as_text(made: list[ControlChange], last: ControlChange) -> None:
    before = ClusterControls()
    for change in made:
        before = change.of(before)
    after = last.of(before)
    assert last.of(after) == after
    for name in ("objective", "grace_s", "floor_frac"):
        named = getattr(last, name)
        assert getattr(after, name) == (getattr(before, name) if named is None else named)
    for name in ("quotas", "weights", "priorities"):
        named, had, has = getattr(last, name), getattr(before, name), getattr(after, name)
        assert {user: value for user, value in named.items() if value is not None}.items() <= has.items()
        assert has.keys() == (had.keys() | named.keys()) - {user for user, value in named.items() if value is None}
    assert msgspec.json.decode(msgspec.json.encode(after), type=ClusterControls) == after
    assert ControlChange().of(after) == after


def split(ledger: GrantLedger, **held: int) -> dict[str, int]:
    """CPUs of two users' jobs that could use all of them, ten seconds later."""
    found: dict[str, int] = dict(held)
    for at_s in range(10):
        now_s = split.now_s = getattr(split, "now_s", 0.0) + 1.0
        for user in ("ann", "bob"):
            report = JobReport(job=user, user=user, wanted=8, held={"a": found.get(user, 0)}, progress_s=float(at_s))
            found[user] = sum(order.cpus for order in ledger.report(report, now_s))
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (ControlChange(quotas={"bob": 6, "ann": 2}), {"ann": 2, "bob": 6}),
        (ControlChange(priorities={"bob": 1}), {"ann": 0, "bob": 8}),
        (ControlChange(weights={"bob": 9.0}), {"ann": 0, "bob": 8}),
    ],
    ids=["quotas", "priorities", "weights"],
)
def test_a_running_ledger_follows_and_goes_back(change: ControlChange, expected: dict[str, int]) -> None:
    ledger = GrantLedger()
    ledger.set_nodes([ClusterNode(name="a", cpus=8)])
    assert split(ledger) == {"ann": 8, "bob": 0}
    controls = change.of(ClusterControls())
    ledger.configure(controls.applied(LedgerConfig()))
    assert split(ledger, ann=8) == expected
    away = ControlChange(**{name: dict.fromkeys(("ann", "bob")) for name in ("quotas", "weights", "priorities")})
    assert away.of(controls) == ClusterControls()


def test_mistakes_are_named() -> None:
    for wrong in ({"quotas": {"ann": -1}}, {"weights": {"ann": 0.0}}, {"grace_s": 0.0}, {"floor_frac": 2.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ClusterControls(**wrong)  # type: ignore[arg-type]
