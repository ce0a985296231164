"""A model of a family on whose parts designs are not placed; its weights are another's."""

from msgspec import structs

from stoker.deploy.search.model import ResourceModel, model_of
from stoker.deploy.tools.devices import fpga


def unplaced_model() -> ResourceModel:
    """The ECP5's weights under the rules of 7 series, without a clock."""
    known = model_of(fpga("ecp5-45k"))
    return structs.replace(known, family="xc7", grade="", luts={**known.luts, "products": 1.0}, period_ns={})
