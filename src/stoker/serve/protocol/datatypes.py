"""Names that the protocol has for types of numbers."""

from __future__ import annotations

import numpy as np

from stoker.serve.refusals import malformed

DTYPES: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"), "UINT16": np.dtype("<u2"), "UINT32": np.dtype("<u4"), "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"), "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"),
}  # fmt: skip
"""NumPy's types by name. BYTES and BF16 are not served: they have no NumPy type of fixed size."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def name_of(dtype: np.dtype[np.generic]) -> str:
    """The protocol's name of a type; raises ``ValueError`` for one that it lacks or that is not served."""
    name = _NAMES.get(dtype)
    if name is None:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}, got {dtype}")
    return name


def dtype_of(name: str, tensor: str) -> np.dtype[np.generic]:
    """NumPy's type; raises :class:`~stoker.serve.refusals.RequestRefused` for an unknown name."""
    dtype = DTYPES.get(name)
    if dtype is None:
        raise malformed(f"`datatype` of `{tensor}` must be one of {', '.join(DTYPES)}, got {name[:20]!r}")
    return dtype
