"""This machine's CPU: measured once, then steps of programs are predicted on it."""

from __future__ import annotations

from stoker.perf.machine.prediction import predict_step
from stoker.perf.machine.rates import Rates, RatesError, default_path, load, save

__all__ = ["Rates", "RatesError", "default_path", "load", "predict_step", "save"]
