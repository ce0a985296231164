"""Settings of the process that decide how operations round, and in which a worker may differ from the program."""

from __future__ import annotations

import numpy as np
import torch

Numerics = tuple[int, bool, str, bool, bool]
_DENORMAL = np.float32(1e-39)


def numerics() -> Numerics:
    """Threads, deterministic algorithms, precision of matrix products, oneDNN, and whether tiny numbers are flushed."""
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        bool(torch.backends.mkldnn.enabled),
        float(_DENORMAL * np.float32(1.0)) == 0.0,  # NumPy's: no mode of the program sees it
    )
