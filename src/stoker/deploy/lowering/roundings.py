"""Rows of a graph's layers by either rule, remembered: lowering many designs of a graph rounds each layer once."""

from __future__ import annotations

from stoker.deploy.floating.patches import PatchMoments
from stoker.deploy.lowering.compensating import compensated_rows
from stoker.deploy.lowering.observation import Real
from stoker.deploy.lowering.rounding import RoundedRows, RoundingRule, RowRounding, nearest_rows

_KEPT = 32
"""Roundings of a layer that are remembered: by width, and by scales where these are given."""


class Roundings:
    """What was rounded of one graph. It must not be used with another graph, or with other observations."""

    def __init__(self) -> None:
        self._made: dict[str, dict[tuple[object, ...], RoundedRows]] = {}

    def of(self, name: str, rule: RoundingRule, patches: PatchMoments | None, *, centred: bool) -> RowRounding:
        """How a layer's rows are rounded.

        Args:
            name: of the layer.
            rule: nearest rounding takes its place where no covariance was observed.
            patches: what the layer reads.
            centred: whether the layer's bias takes the mean error, so that only deviations from the mean count.
        """
        compensated = rule == "compensated" and patches is not None and patches.covariance is not None

        def rounded(rows: Real, bits: int, given: Real | None = None, least: int | None = None) -> RoundedRows:
            known = self._made.setdefault(name, {})
            key = (compensated, compensated and centred, bits, None if given is None else given.tobytes(), least)
            made = known.pop(key, None)
            if made is None:
                second = patches.second(centred=centred) if compensated and patches is not None else None
                made = (
                    nearest_rows(rows, bits, given, least)
                    if second is None
                    else compensated_rows(rows, bits, second, given, least)
                )
            known[key] = made  # the one that was used last comes last
            if len(known) > _KEPT:
                del known[next(iter(known))]
            return made

        return rounded
