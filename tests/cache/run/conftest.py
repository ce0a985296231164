"""The stores and caches of the filesystem's tests."""

from tests.cache.filesystem.conftest import directory, make, memory, s3_server  # noqa: F401
