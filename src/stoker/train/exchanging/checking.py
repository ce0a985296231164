# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (norms are untyped)
"""Whether a gradient is the product of the factors captured of it: Freivalds' test, one pass over the gradient.

A weight may get gradient that its layer's factors do not know: of tied weights, penalties, hooks, an earlier backward
pass. Source: Freivalds, "Probabilistic machines can use less running time" (IFIP 1977): products of matrices are
compared by what they do to a random vector.
"""

from __future__ import annotations

import torch

_SUM_ERRORS = 24.0
"""Roundings of a product's sums that pass, as a share of the product of the factors' norms."""
_RESULT_ERRORS = 4.0
"""Roundings of a result that was itself rounded to fewer bits: half of one each, in the mean less."""
_TF32_EPS = 2.0**-10
_HALVES = (torch.float16, torch.bfloat16)


def is_product(gradient: torch.Tensor, left: torch.Tensor, right: torch.Tensor, vector: torch.Tensor) -> bool:
    """Whether ``gradient`` is ``left.T @ right``, up to the rounding of what multiplied.

    The rounding of sums grows with the factors' norms, however much of them cancels; the rounding of the result grows
    with the result. So both are allowed for, and nothing else. A tolerance that is relative to the result alone would
    flag healthy gradients late in training, or none of autocast's.

    Args:
        gradient: M x N.
        left: K x M, in the type that multiplied.
        right: K x N, likewise.
        vector: N random numbers of mean square 1.

    Note:
        Values that are not finite are no product: such a step goes by all-reduce, as torch does it.
    """
    wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    drawn = vector.to(gradient.device, wide)
    coarse = _coarsest(gradient, left)
    left, right = left.to(wide), right.to(wide)
    expected = torch.mv(left.t(), torch.mv(right, drawn))
    # The one pass over the gradient. Whatever else there is counts: a layer's backward pass is ten such passes.
    apart = torch.addmv(expected, gradient.to(wide), drawn, beta=-1.0)
    norm = torch.linalg.vector_norm
    limit = _SUM_ERRORS * torch.finfo(wide).eps * norm(left) * norm(right)
    if coarse:
        limit = limit + _RESULT_ERRORS * coarse * norm(expected)
    return bool(norm(apart) <= limit)


def _coarsest(gradient: torch.Tensor, factor: torch.Tensor) -> float:
    """The rounding of the result, where that is coarser than the rounding of sums; 0 elsewhere."""
    halves = [torch.finfo(each).eps for each in (gradient.dtype, factor.dtype) if each in _HALVES]
    if gradient.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        halves.append(_TF32_EPS)
    return max(halves, default=0.0)
