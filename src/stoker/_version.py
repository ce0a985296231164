"""The version: read by the build and by run headers, without importing the package."""

__version__ = "0.1.0"
