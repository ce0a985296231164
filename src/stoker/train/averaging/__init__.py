"""Model averaging: ranks train apart for some steps, then take the mean of their weights.

The policy is pure; a replica holds what is averaged on one rank and says what it needs of the others; the averager
joins both to a program, its process group and its optimizers.
"""

from __future__ import annotations

from stoker.train.averaging.averager import ModelAverager, average, serve
from stoker.train.averaging.policy import AveragingRules

__all__ = ["AveragingRules", "ModelAverager", "average", "serve"]
