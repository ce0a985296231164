"""Weights rounded one input after another, each making up for the errors before it. Pure.

Rounding a row w to q is to change little of what the layer returns: with H the second moment of what it reads at a
time, the squared error is (q - w) H (q - w)^T. Written as H = M D M^T, M upper triangular with a diagonal of ones and D
diagonal, it is

    sum_i D_i (q_i - v_i)^2,   v_i = w_i - sum_{j < i} (q_j - w_j) M_ji,

so an input is rounded to the step nearest to v_i, which holds what the inputs before it did wrong. These are the
numbers of Frantar et al., "GPTQ" (2022, arXiv:2210.17323), which has M by the inverse of H (M^-T D^-1 M^-1), after
Hassibi and Stork, "Second Order Derivatives for Network Pruning: Optimal Brain Surgeon" (1992); this form needs no
inverse (Chee et al., "QuIP", 2023, arXiv:2307.13304, section 3). As there, inputs come by falling diagonal of H, and H
gets a share of its mean diagonal, so that no error is free. Unlike there, the scale of a row is chosen by this error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.lowering.observation import Real
from stoker.deploy.lowering.rounding import CUTS, RoundedRows, ends, nearest_rows, widest_scales

_DAMPING = 0.01
"""Share of the mean diagonal that is added to it."""
_BLOCK = 32
"""Inputs between two products of all errors so far."""
_AT_ONCE = 1 << 11
"""Rows that are rounded at once: a block of them stays in a processor's caches."""


def compensated_rows(
    rows: Real, bits: int, second: Real, given: Real | None = None, least: int | None = None
) -> RoundedRows:
    """Rows rounded for the least error of what the layer returns.

    A row that rounding to nearest does better stays as :func:`stoker.deploy.lowering.rounding.nearest_rows` has it.
    Rows that are on a grid already, at a scale that cuts none of them, stay what they are.

    Args:
        rows: (rows, inputs); those of a group together.
        bits: of the whole numbers.
        second: second moment of what a group reads, (groups, inputs, inputs).
        given: scales to use instead, by row.
        least: whole number; the negative of the largest by default.
    """
    groups, inputs = second.shape[:2]
    factors = _Factors(second)
    low, high = ends(bits, least)
    wanted = factors.ordered(rows.reshape(groups, -1, inputs))
    chosen = given is None
    if given is None:
        tried = (widest_scales(rows, bits)[:, None] * CUTS).reshape(groups, -1, len(CUTS))
        best = factors.sequence(wanted, tried, low, high, None).argmin(axis=2)
        given = np.take_along_axis(tried, best[:, :, None], axis=2).ravel()
    whole = np.empty(wanted.shape, np.int8)
    errors = factors.sequence(wanted, given.reshape(groups, -1, 1), low, high, whole).ravel()
    found = factors.restored(whole).reshape(rows.shape)
    plain = nearest_rows(rows, bits, None if chosen else given, least)
    away = factors.ordered((plain.whole * plain.scales[:, None] - rows).reshape(groups, -1, inputs))
    worse = factors.errors(away).ravel() < errors
    return RoundedRows(whole=np.where(worse[:, None], plain.whole, found), scales=np.where(worse, plain.scales, given))


class _Factors:
    """A damped second moment with its inputs in order, as M D M^T; arrays of rows are (groups, inputs, rows)."""

    def __init__(self, second: Real) -> None:
        diagonal = np.diagonal(second, axis1=1, axis2=2)
        self._order = np.argsort(-diagonal, axis=1, kind="stable")
        damped = np.take_along_axis(second, self._order[:, :, None], axis=1)
        damped = np.take_along_axis(damped, self._order[:, None, :], axis=2)
        mean = diagonal.mean(axis=1)
        added = np.where(mean > 0, _DAMPING * mean, 1.0)  # of an input that never changes, all weights count alike
        upper = _upper(damped, added)
        roots = np.diagonal(upper, axis1=1, axis2=2)
        self._weights = np.square(roots)
        self._feedback = np.ascontiguousarray((upper / roots[:, None, :]).transpose(0, 2, 1))  # M^T

    def ordered(self, rows: Real) -> Real:
        """Rows, (groups, rows, inputs), as these products take them."""
        return np.take_along_axis(rows.transpose(0, 2, 1), self._order[:, :, None], axis=1)

    def restored(self, whole: NDArray[np.int8]) -> NDArray[np.int8]:
        """The inverse of :meth:`ordered`."""
        places = np.argsort(self._order, axis=1)
        return np.take_along_axis(whole, places[:, :, None], axis=1).transpose(0, 2, 1)

    def errors(self, away: Real) -> Real:
        """The squared error of rows that are so far from the wanted ones, (groups, rows)."""
        return np.einsum("gi,gir->gr", self._weights, np.square(self._feedback @ away))

    def sequence(self, wanted: Real, scales: Real, low: int, high: int, whole: NDArray[np.int8] | None) -> Real:
        """Rounds rows in order.

        Args:
            wanted: rows, (groups, inputs, rows).
            scales: to try, (groups, rows, scales).
            low: least whole number.
            high: largest.
            whole: takes the numbers, where there is one scale a row.

        Returns:
            The squared errors, (groups, rows, scales).
        """
        groups, _, each = scales.shape
        flat = scales.reshape(groups, -1)
        errors = np.empty(flat.shape)
        step = max(1, _AT_ONCE // groups)
        for begin in range(0, flat.shape[1], step):
            part = np.arange(begin, min(begin + step, flat.shape[1]))
            own = None if whole is None else whole[:, :, part[0] : part[-1] + 1]
            errors[:, part] = self._sequence(wanted[:, :, part // each], flat[:, part], low, high, own)
        return errors.reshape(scales.shape)

    def _sequence(self, wanted: Real, scales: Real, low: int, high: int, whole: NDArray[np.int8] | None) -> Real:
        inputs = wanted.shape[1]
        away = np.empty_like(wanted)  # q - w
        total = np.zeros_like(scales)
        back = self._feedback
        for begin in range(0, inputs, _BLOCK):
            block = slice(begin, min(begin + _BLOCK, inputs))
            moved = wanted[:, block] - back[:, block, :begin] @ away[:, :begin]
            for at in range(begin, block.stop):
                here = moved[:, at - begin]
                if at > begin:
                    here = here - (back[:, at : at + 1, begin:at] @ away[:, begin:at])[:, 0]
                steps = np.clip(np.rint(here / scales), low, high)
                made = steps * scales
                away[:, at] = made - wanted[:, at]
                total += self._weights[:, at, None] * np.square(made - here)
                if whole is not None:
                    whole[:, at] = steps
        return total


def _upper(moment: Real, added: Real) -> Real:
    """R upper triangular with R R^T a moment and something on its diagonal: more where rounding left it indefinite.

    The moment is changed: of wide patches it is large, and is not copied more often than it must be.
    """
    diagonal = np.einsum("gii->gi", moment)  # a view
    while True:
        diagonal += added[:, None]
        try:
            lower = np.linalg.cholesky(moment[:, ::-1, ::-1])
        except np.linalg.LinAlgError:
            added = added * 10
        else:
            return np.asarray(lower[:, ::-1, ::-1], dtype=np.float64)
