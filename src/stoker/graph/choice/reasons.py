"""Why a stateless node stays in the training process, in words with numbers."""

from __future__ import annotations

from collections.abc import Set

from stoker.core.units import format_bytes, format_seconds
from stoker.graph.choice.cost_model import CutAccounts


def reasons(ledger: CutAccounts, moved: Set[int]) -> dict[int, str]:
    """Why each stateless node outside the best cut stays."""
    found: dict[int, str] = {}
    together: dict[int, frozenset[int]] = {}
    for node in ledger.graph.nodes:
        number = node.number
        if number in moved or node.state:
            continue
        if number in ledger.obstacles:
            found[number] = ledger.obstacles[number]
            continue
        before = [together[n] for n in ledger.producers[number] if n not in moved]
        together[number] = frozenset({number}).union(*before)
        found[number] = _reason(ledger, moved, number, together[number])
    return found


def _reason(ledger: CutAccounts, moved: Set[int], number: int, together: frozenset[int]) -> str:
    """Considers what would change if a node moved with all that it depends on."""
    node = ledger.graph.nodes[number]
    if node.is_view:
        return "is a view of a tensor that the training process has, and costs nothing"
    after = moved | together
    calls_ns = ledger.calls_ns(together, after) - sum(ledger.price_ns(n) for n in together)
    earlier = [n for n in together if n != number and not ledger.graph.nodes[n].is_view]
    if calls_ns <= 0 and not earlier:
        return _cheap(ledger, number)
    new = [value for value in ledger.made(together) if ledger.needed(value, after)]
    # If the costliest value is another node's, this node would move if that one did.
    heaviest = max(new, key=ledger.send_ns, default=None)
    culprit = ledger.graph.values[heaviest].producer if heaviest is not None else number
    if culprit is not None and culprit != number:
        return f"depends on a node that stays: {ledger.name(culprit)}"
    if calls_ns <= 0:
        return f"depends on a node that stays: {ledger.name(max(earlier))}"
    freed = [value for value in ledger.read(together) if _freed(ledger, value, moved, after)]
    size_bytes = sum(ledger.graph.values[v].size_bytes for v in new) - sum(
        ledger.graph.values[v].size_bytes for v in freed
    )
    send_ns = sum(map(ledger.send_ns, new)) - sum(map(ledger.send_ns, freed))
    result = "its results" if len(node.outputs) > 1 else "its result"
    what = f"{result} would add {format_bytes(size_bytes)} to a batch" if size_bytes > 0 else f"{result} must be sent"
    return f"{what}: {format_seconds(send_ns / 1e9)} to send against {format_seconds(calls_ns / 1e9)} saved"


def _freed(ledger: CutAccounts, value: int, moved: Set[int], after: Set[int]) -> bool:
    """Whether a value that is sent now would no longer be sent."""
    producer = ledger.graph.values[value].producer
    return producer in moved and ledger.needed(value, moved) and not ledger.needed(value, after)


def _cheap(ledger: CutAccounts, number: int) -> str:
    seconds = ledger.graph.nodes[number].seconds
    if seconds <= ledger.prices.verify_s:
        return f"costs no more than verifying it ({format_seconds(seconds)})"
    return f"costs little more than verifying it ({format_seconds(seconds)}), less than a data worker's time for it"
