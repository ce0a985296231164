"""LitServe with the model that `stoker serve` is compared on: ``python served_litserve.py PORT``.

A separate file, whose class is at the top: LitServe starts its workers afresh and sends them the object.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import litserve
import torch

sys.path.insert(0, str(Path(__file__).parent))
import served_models


class DigitsApi(litserve.LitAPI):
    """The model, in batches."""

    def setup(self, device: Any) -> None:
        """Loads it."""
        torch.set_num_threads(1)
        self.model = served_models.mlp()[0].eval()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe reads annotations: Any is a query to it
        """One request, as a tensor."""
        return torch.tensor(request["inputs"][0]["data"])

    def predict(self, x: Any) -> Any:
        """Scores of a batch."""
        with torch.inference_mode():
            return self.model(x)

    def encode_response(self, output: Any) -> Any:
        """One answer."""
        return {"data": output.tolist()}


if __name__ == "__main__":
    api = DigitsApi(max_batch_size=32, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=2)
    server.run(port=int(sys.argv[1]), num_api_servers=1, generate_client_file=False, log_level="error")
