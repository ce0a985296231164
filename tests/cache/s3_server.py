"""An S3 server in the test process, one for a test session."""

from __future__ import annotations

import warnings
from typing import Any

from botocore.client import Config
from botocore.session import Session

KEY, SECRET = "test", "test"


class S3Server:
    """moto's server on a free port of the loopback, and a plain client of it."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # Its web framework is imported with warnings of its own.
            warnings.simplefilter("ignore")
            from moto.server import ThreadedMotoServer

            self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
            self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.options: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": self.url}
        self.client: Any = Session().create_client(
            "s3",
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            endpoint_url=self.url,
            config=Config(retries={"max_attempts": 1}),
        )

    def close(self) -> None:
        """Ends it."""
        self.client.close()
        self._server.stop()
