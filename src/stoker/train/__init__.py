"""Changes how a running program trains: only as far as its user asks for, and undone by one call."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.train.averaging.averager import ModelAverager, average
    from stoker.train.averaging.policy import AveragingRules
    from stoker.train.exchanging.calling import exchange
    from stoker.train.fitting.calling import ModelFit, fit
    from stoker.train.ring.groups import broadcast
    from stoker.train.sharding.states import shard_states
    from stoker.train.sharding.weights import shard_weights
    from stoker.train.splitting.calling import split
    from stoker.train.staging.calling import shard_layers

__all__ = [
    "AveragingRules",
    "ModelAverager",
    "ModelFit",
    "average",
    "broadcast",
    "exchange",
    "fit",
    "shard_layers",
    "shard_states",
    "shard_weights",
    "split",
]

_HOMES = {
    "AveragingRules": "stoker.train.averaging.policy",
    "ModelAverager": "stoker.train.averaging.averager",
    "average": "stoker.train.averaging.averager",
    "broadcast": "stoker.train.ring.groups",
    "ModelFit": "stoker.train.fitting.calling",
    "exchange": "stoker.train.exchanging.calling",
    "fit": "stoker.train.fitting.calling",
    "shard_layers": "stoker.train.staging.calling",
    "shard_states": "stoker.train.sharding.states",
    "shard_weights": "stoker.train.sharding.weights",
    "split": "stoker.train.splitting.calling",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported with the first use, as for the other capabilities: torch may be missing.
    from importlib import import_module

    from stoker.core.extras import require

    require("torch", extra="torch")
    return getattr(import_module(home), name)
