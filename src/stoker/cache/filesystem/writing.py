# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""Files open for writing: bytes pass through to the store, and an exception inside ``with`` aborts the upload.

``s3fs`` completes the upload when a file is closed, even by an exception, so a program that fails while it writes
replaces the old object by half of a new one. Here the upload is aborted.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fsspec.core import OpenFile
from fsspec.spec import AbstractBufferedFile

_SPOOLED_BYTES = 16 << 20
_NEAR_FRAMES = 6


class WritingFile(io.BufferedIOBase):
    """Writes to a file of the store; calls back before the first byte and after the last."""

    def __init__(
        self, file: Any, path: str, mode: str, wrote: Callable[[], None], *, must_commit: bool = False
    ) -> None:
        """Takes over a file that is open for writing.

        Args:
            file: of the store's filesystem.
            path: of the object.
            mode: it was opened in.
            wrote: is called when the object has changed, or may have.
            must_commit: the store's own file waits for ``commit``, and closing this one gives it.
        """
        super().__init__()
        self.file = file
        self.path = path
        self.mode = mode
        self._must_commit = must_commit
        self._wrote = wrote
        self._is_over = False

    @property
    def name(self) -> str:
        """Path of the object."""
        return self.path

    def writable(self) -> bool:
        """Whether it is open."""
        return not self.closed

    def seekable(self) -> bool:
        """Whether the store's own file can move."""
        return not self.closed and not isinstance(self.file, AbstractBufferedFile) and self.file.seekable()

    def write(self, data: Any, /) -> int:
        """Writes all of the data."""
        if self._is_over:
            raise ValueError("I/O operation on closed file")
        count = self.file.write(data)
        return len(memoryview(data)) if count is None else count

    def readable(self) -> bool:
        """Whether it was opened for both."""
        return not self.closed and "+" in self.mode

    def read(self, size: int | None = -1, /) -> bytes:
        """Bytes of the store's own file, where it was opened for both."""
        if not self.readable():
            raise io.UnsupportedOperation("read")
        return self.file.read(-1 if size is None else size)

    def truncate(self, size: int | None = None, /) -> int:
        """Cuts, where the store's own file can."""
        return self.file.truncate(size)

    def tell(self) -> int:
        """Where the next byte goes."""
        return self.file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves, where the store's own file can."""
        return self.file.seek(offset, whence)

    def flush(self) -> None:
        """Passes on what the store's own file would pass on."""
        if not self.closed and not self._is_over:
            self.file.flush()

    def close(self) -> None:
        """Completes the object, unless an exception is about to leave the ``with`` that opened it."""
        if self.closed or self._is_over:
            super().close()
            return
        if _is_unwinding():
            self.abort()
            return
        self._is_over = True
        try:
            self.file.close()
            if self._must_commit:
                self.file.commit()
        finally:
            self._wrote()
            super().close()

    def abort(self) -> None:
        """Aborts the upload; the object stays unchanged if the store supports that."""
        self._is_over = True
        try:
            _give_up(self.file)
        finally:
            self._wrote()
            super().close()

    def commit(self) -> None:
        """Completes the object at the end of a transaction."""
        try:
            self.file.commit()
        finally:
            self._wrote()

    def discard(self) -> None:
        """Aborts the object at the end of a transaction."""
        try:
            self.file.discard()
        finally:
            self._wrote()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._is_over and not self.closed:
            self.abort()
        else:
            self.close()


class WritingText(io.TextIOWrapper):
    """Text written to a file of the store."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            aborting: Any = self.buffer
            aborting.abort()
        else:
            self.close()


class WritingCompressed(io.BufferedIOBase):
    """Bytes that are compressed on their way into a file of the store."""

    def __init__(self, compressor: Any, file: WritingFile) -> None:
        """Takes over both.

        Args:
            compressor: writes into ``file``.
            file: of the store.
        """
        super().__init__()
        self.compressor = compressor
        self.file = file

    def writable(self) -> bool:
        """Whether it is open."""
        return not self.closed

    def write(self, data: Any, /) -> int:
        """Compresses the data and writes what comes of it."""
        return self.compressor.write(data)

    def close(self) -> None:
        """Ends the compressed data and completes the object."""
        if not self.closed:
            try:
                self.compressor.close()
            finally:
                self.file.close()
                super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        else:
            self.close()

    def abort(self) -> None:
        """Aborts the upload."""
        self.file.abort()
        super().close()
        try:
            self.compressor.close()
        except (ValueError, OSError):
            pass  # its last bytes cannot be written


class SpooledWrite(io.BufferedIOBase):
    """Buffers what is written and stores it whole at the end, for stores without an abortable upload."""

    def __init__(self, pipe: Callable[[bytes], None], *, autocommit: bool) -> None:
        """Opens the place aside.

        Args:
            pipe: writes the object, whole.
            autocommit: False waits for ``commit``.
        """
        super().__init__()
        self._pipe = pipe
        self._autocommit = autocommit
        self._aside = tempfile.SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115 - closed with the file

    def writable(self) -> bool:
        """Whether it is open."""
        return not self.closed

    def seekable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any, /) -> int:
        """Writes all of the data."""
        return self._aside.write(data)

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._aside.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves."""
        return self._aside.seek(offset, whence)

    def close(self) -> None:
        """Writes the object."""
        if not self.closed:
            try:
                if self._autocommit:
                    self.commit()
            finally:
                super().close()

    def commit(self) -> None:
        """Writes the object."""
        self._aside.seek(0)
        self._pipe(self._aside.read())
        self._aside.close()

    def discard(self) -> None:
        """Writes nothing."""
        self._aside.close()
        super().close()


def _give_up(file: Any) -> None:
    if isinstance(file, AbstractBufferedFile):
        # Closed first: a later close, for instance by the garbage collector, must not complete the upload.
        file.closed = True
    if hasattr(file, "discard"):
        file.discard()
    else:
        file.close()


def _is_unwinding() -> bool:
    """Whether ``fsspec.open`` is closing the file because an exception leaves its ``with``.

    It does not pass the exception on, so its arguments are read from its frame.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(_NEAR_FRAMES):
        if frame.f_code is OpenFile.__exit__.__code__:
            return frame.f_locals["args"][0] is not None
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
