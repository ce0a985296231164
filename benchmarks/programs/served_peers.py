"""Servers that benchmarks compare with: ``python served_peers.py SERVER PORT``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """The least that an ASGI server can do with a body: send it back."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)[:256]
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/octet-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_echo(port: int) -> None:
    """uvicorn, as `stoker serve` starts it."""
    import uvicorn

    uvicorn.run(
        echo, port=port, loop="uvloop", http="httptools", ws="none", lifespan="off", log_config=None,
        access_log=False, server_header=False,
    )  # fmt: skip


def serve_ray(port: int) -> None:
    """Ray Serve with the same model and batch."""
    import ray
    import torch
    from ray import serve

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)

    @serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)
    class Digits:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.model = _mlp()

        @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
        async def many(self, inputs: list[Any]) -> list[Any]:
            with torch.inference_mode():
                return self.model(torch.stack(inputs)).tolist()

        async def __call__(self, request: Any) -> Any:
            if request.method == "GET":
                return "ok"
            return {"data": await self.many(torch.tensor((await request.json())["inputs"][0]["data"]))}

    serve.start(http_options={"port": port})
    serve.run(Digits.bind())
    while True:
        time.sleep(1)


def _mlp() -> Any:
    sys.path.insert(0, str(Path(__file__).parent))
    import served_models  # as the service under test loads it, by its file

    return served_models.mlp()[0].eval()


if __name__ == "__main__":
    {"echo": serve_echo, "ray": serve_ray}[sys.argv[1]](int(sys.argv[2]))
