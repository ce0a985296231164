"""stoker keeps deep-learning accelerators busy: elastic data workers for unmodified PyTorch programs."""

from stoker._version import __version__

__all__ = ["__version__"]
