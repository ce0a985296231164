"""Clients of a service on this machine: ``python -m stoker.run.serving.front_client_main PORT SECONDS < REQUEST``.

A process, so that its own time is not the service's. Its clients send the request that its input holds, each again once
it is answered; it writes how many were answered. Exit status 1 and the answer, if one is no success.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import uvloop

CLIENTS = 16
"""That ask at once: as under load, a turn of the service's loop reads several requests."""


async def _ask(port: int, request: bytes, end_s: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 30)
    answered = 0
    while time.monotonic() < end_s:
        writer.write(request)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        (length,) = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
        body = await reader.readexactly(length)
        if b" 200" not in lines[0]:
            raise ConnectionError(f"{lines[0].decode()}: {body[:500].decode(errors='replace')}")
        answered += 1
    writer.close()
    return answered


async def _ask_all(port: int, request: bytes, seconds: float) -> int:
    end_s = time.monotonic() + seconds
    return sum(await asyncio.gather(*(_ask(port, request, end_s) for _ in range(CLIENTS))))


def main() -> int:
    """Asks until the time is over."""
    port, seconds = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, to all processes at once: who started it ends it
    try:
        sys.stdout.write(str(uvloop.run(_ask_all(int(port), sys.stdin.buffer.read(), float(seconds)))))
    except (OSError, EOFError) as error:
        sys.stdout.write(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
