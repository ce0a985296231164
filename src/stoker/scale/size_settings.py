"""The settings of a program whose ranks stoker starts; it starts none unless a number of them is given."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from stoker.core.errors import ConfigError
from stoker.core.settings import Option, Settings, choice, duration, number

_WORKERS = "run the program under torchrun with so many training workers, and search the best number"
_RULE = "a number of at least 1, or a range of them such as `1:4`"
_OBJECTIVE = "what the number of training workers is to be good at: throughput, or throughput for its price"
_HORIZON = "time within which a change must repay its restart and repeated steps"
_ACCUMULATION = "variable from which the program takes its accumulation, so that the global batch can be kept"
_PRICE_RULE = "a price for an hour of at least 0"
_MOST = 1024


def range_of(text: str) -> tuple[int, int]:
    """Least and most training workers; raises ``ValueError`` for a text that means none."""
    found = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", text)
    if found is None:
        raise ValueError(text)
    least = int(found[1])
    most = int(found[2] or least)
    if not 1 <= least <= most <= _MOST:
        raise ValueError(text)
    return least, most


def _is_range(value: object) -> bool:
    return isinstance(value, str) and bool(range_of(value))


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII) is not None


class SizeSettings(Settings, frozen=True, kw_only=True):
    """How many training workers there are, and what a change must bring."""

    training_workers: Annotated[str | None, Option(form="N|MIN:MAX", text=_WORKERS, rule=_RULE, accepts=_is_range)] = (
        None
    )
    objective: Annotated[Literal["rate", "price"], choice(_OBJECTIVE)] = "rate"
    worker_price: Annotated[
        float | None, number("PRICE", "price of a training worker for an hour, in any currency", _PRICE_RULE, least=0)
    ] = None
    cpu_price: Annotated[
        float | None, number("PRICE", "price of a CPU for an hour; a data worker counts as one", _PRICE_RULE, least=0)
    ] = None
    horizon_s: Annotated[float, duration(_HORIZON, "a time such as `1h`, of at least 1 s", least=1.0)] = 3600.0
    accumulation_env: Annotated[
        str | None,
        Option(form="NAME", text=_ACCUMULATION, rule="the name of a variable or `auto`", accepts=_is_variable),
    ] = None

    def __post_init__(self) -> None:
        """Checks each value, then the values together."""
        super().__post_init__()
        if self.objective == "price" and not self.worker_price:
            raise ConfigError(
                f"`worker-price` must be given with `--objective price`, got {self.worker_price}; "
                "add `--worker-price 2.50 --cpu-price 0.04`, for an hour",
                key="objective",
                together=("objective", "worker_price"),
            )

    @property
    def range(self) -> tuple[int, int] | None:
        """Least and most training workers; None where the program is run as it is."""
        return range_of(self.training_workers) if self.training_workers else None
