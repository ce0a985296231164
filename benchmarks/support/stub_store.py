"""An emulated object store: a server that speaks enough of S3 over a folder, with a latency and a shared bandwidth.

It runs in a process of its own and answers HEAD, GET (``Range``, ``If-Match``), PUT and ListObjectsV2. Requests are
counted. Latency and bandwidth can be changed while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import mmap
import os
import signal
import socket
import urllib.parse
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_LATENCY_S, _BYTES_PER_S, _REQUESTS, _HEADS, _BYTES = range(5)
_SLICES_PER_S = 1000
"""Of what the bandwidth lets through at once; so many times a second the event loop has to wake."""


class StubStore:
    """A running server.

    Attributes:
        folder: its buckets are the folders in it, its objects their files; replace files only by renaming.
        url: of the endpoint.
    """

    def __init__(self, folder: Path, *, latency_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        """Starts the server, by forking: before other threads run.

        Args:
            folder: of the buckets.
            latency_s: added to every request.
            bytes_per_s: of all answers together; 0 for no limit.
        """
        self.folder = folder
        self._cells: Any = RawArray("d", 5)
        self.set(latency_s=latency_s, bytes_per_s=bytes_per_s)
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._process = get_context("fork").Process(target=_serve, args=(folder, listener, self._cells), daemon=True)
        self._process.start()
        listener.close()

    def set(self, *, latency_s: float, bytes_per_s: float = 0.0) -> None:
        """Other delays from now on."""
        self._cells[_LATENCY_S], self._cells[_BYTES_PER_S] = latency_s, bytes_per_s

    def reset_counts(self) -> None:
        """Counts from zero again."""
        self._cells[_REQUESTS] = self._cells[_HEADS] = self._cells[_BYTES] = 0.0

    @property
    def gets(self) -> int:
        """GETs of objects since counting began."""
        return int(self._cells[_REQUESTS])

    @property
    def heads(self) -> int:
        """HEADs and listings since then."""
        return int(self._cells[_HEADS])

    @property
    def sent_bytes(self) -> int:
        """Bytes of objects sent since then."""
        return int(self._cells[_BYTES])

    @property
    def options(self) -> dict[str, Any]:
        """For ``S3FileSystem``."""
        return {"key": "key", "secret": "secret", "endpoint_url": self.url}

    def close(self) -> None:
        """Ends the server."""
        self._process.terminate()
        self._process.join()


@contextlib.contextmanager
def stub_store(folder: Path, *, latency_s: float = 0.0, bytes_per_s: float = 0.0) -> Iterator[StubStore]:
    """A :class:`StubStore`, ended at the end."""
    store = StubStore(folder, latency_s=latency_s, bytes_per_s=bytes_per_s)
    try:
        yield store
    finally:
        store.close()


def _serve(folder: Path, listener: socket.socket, cells: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # clients' connections need no farewell
    asyncio.run(_Server(folder, cells).run(listener))


class _Missing(Exception):
    def __init__(self, status: str, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class _Server:
    def __init__(self, folder: Path, cells: Any) -> None:
        self._folder = folder
        self._cells = cells
        self._free_at = 0.0
        self._maps: dict[tuple[str, int, int], memoryview] = {}

    async def run(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._converse, sock=listener, limit=1 << 18)
        async with server:
            await server.serve_forever()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = line.split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (part.partition(":") for part in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await asyncio.sleep(self._cells[_LATENCY_S])
                await self._answer(writer, method, target, headers, body)
        writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> None:
        path, _, query = target.partition("?")
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        try:
            if method == "PUT":
                _replace(self._folder / bucket / key, body)
                await self._send(writer, "200 OK", {})
            elif not key:
                self._cells[_HEADS] += 1
                text = self._listed(bucket, dict(urllib.parse.parse_qsl(query)))
                await self._send(writer, "200 OK", {"Content-Type": "application/xml"}, text.encode())
            else:
                await self._object(writer, method, self._folder / bucket / key, headers)
        except _Missing as error:
            text = f"<Error><Code>{error.code}</Code><Message>{error.code}</Message></Error>"
            await self._send(writer, error.status, {}, b"" if method == "HEAD" else text.encode())

    async def _object(self, writer: asyncio.StreamWriter, method: str, path: Path, headers: dict[str, str]) -> None:
        data, etag, modified = self._opened(path)
        if headers.get("if-match", etag) != etag:
            raise _Missing("412 Precondition Failed", "PreconditionFailed")
        size = len(data)
        answer = {
            "ETag": etag,
            "Last-Modified": modified,
            "Accept-Ranges": "bytes",
            "Content-Type": "binary/octet-stream",
        }
        if method == "HEAD":
            self._cells[_HEADS] += 1
            await self._send(writer, "200 OK", {**answer, "Content-Length": str(size)})
            return
        self._cells[_REQUESTS] += 1
        start, end, status = 0, size, "200 OK"
        if wanted := headers.get("range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, size - int(last))
            end = min(size, int(last) + 1) if first and last else size
            if start >= size:
                raise _Missing("416 Range Not Satisfiable", "InvalidRange")
            status = "206 Partial Content"
            answer["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._cells[_BYTES] += end - start
        await self._send(writer, status, answer, data[start:end])

    async def _send(
        self, writer: asyncio.StreamWriter, status: str, headers: dict[str, str], body: bytes | memoryview = b""
    ) -> None:
        headers = {"Content-Length": str(len(body)), "x-amz-request-id": "0", **headers}
        text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {status}\r\n{text}\r\n".encode("latin-1"))
        rate = self._cells[_BYTES_PER_S]
        step = max(1 << 14, int(rate / _SLICES_PER_S)) if rate else 1 << 20
        for start in range(0, len(body), step):
            part = body[start : start + step]
            if rate:
                await self._wait(len(part) / rate)
            writer.write(part)
            await writer.drain()

    async def _wait(self, seconds: float) -> None:
        """Takes the next ``seconds`` of the bandwidth: answers take turns, in slices."""
        now = asyncio.get_running_loop().time()
        # What a late wake-up lost may be made good for, else the rate would be lower than stated.
        self._free_at = max(self._free_at, now - 0.01) + seconds
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)

    def _opened(self, path: Path) -> tuple[memoryview, str, str]:
        try:
            stat = path.stat()
            if not path.is_file():
                raise FileNotFoundError
        except (FileNotFoundError, NotADirectoryError):
            raise _Missing("404 Not Found", "NoSuchKey") from None
        known = (str(path), stat.st_ino, stat.st_mtime_ns)
        data = self._maps.get(known)
        if data is None:
            data = self._maps[known] = _mapped(path)
        etag = f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"'
        return data, etag, email.utils.formatdate(stat.st_mtime, usegmt=True)

    def _listed(self, bucket: str, query: dict[str, str]) -> str:
        root = self._folder / bucket
        if not root.is_dir():
            raise _Missing("404 Not Found", "NoSuchBucket")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        found: list[str] = []
        folders: set[str] = set()
        for path in sorted(root.rglob("*")):
            key = path.relative_to(root).as_posix()
            if not path.is_file() or not key.startswith(prefix):
                continue
            below, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if slash:
                folders.add(prefix + below + slash)
            else:
                found.append(self._entry(key, path))
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        )
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found) + len(folders)}"
            f"</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{''.join(found)}{common}"
            "</ListBucketResult>"
        )

    def _entry(self, key: str, path: Path) -> str:
        stat = path.stat()
        etag = f"&quot;{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}&quot;"
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{etag}</ETag><Size>{stat.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )


def _mapped(path: Path) -> memoryview:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    aside.write_bytes(data)
    aside.rename(path)
