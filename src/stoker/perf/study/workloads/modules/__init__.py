"""The published models as torch modules, by their architecture: each takes a micro-batch and returns its loss.

They are runnable, and made to be traced: their operations, shapes and weights are those of the measured models. Values
that change no shape (initial weights, rates of dropout beyond being on) are torch's defaults.
"""
