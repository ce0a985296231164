"""Why a request gets no answer, as status of HTTP and text."""

from __future__ import annotations


class RequestRefused(Exception):
    """A request is malformed, comes at the wrong moment, or its model failed.

    Attributes:
        status: of HTTP.
        outcome: in which it is counted: ``malformed``, ``refused`` on arrival, ``dropped`` at dispatch, ``failed``.
        retry_after_s: when it is worth another try; None where it never is.
    """

    def __init__(
        self, status: int, message: str, *, outcome: str = "malformed", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def retry_after_ms(self) -> int | None:
        """The same in whole milliseconds, at least 1."""
        return None if self.retry_after_s is None else max(1, round(1e3 * self.retry_after_s))


def malformed(message: str) -> RequestRefused:
    """A request that breaks a rule of the protocol or of the model."""
    return RequestRefused(400, message)


def too_late(retry_after_s: float, reason: str, *, outcome: str = "refused") -> RequestRefused:
    """A request that cannot be answered in time."""
    return RequestRefused(503, reason, outcome=outcome, retry_after_s=retry_after_s)


def failed(text: str) -> RequestRefused:
    """A request at which the model failed."""
    return RequestRefused(500, f"the model failed: {text}", outcome="failed")
