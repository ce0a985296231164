"""What every inference passes on arrival, over HTTP and gRPC: one bound on the memory of all; pure."""

from __future__ import annotations

from stoker.serve.policy import BatchPolicy
from stoker.serve.refusals import RequestRefused, too_late


class RequestAdmission:
    """Counts the bytes of requests that are read or answered.

    Args:
        max_body_bytes: of one request.
        max_held_bytes: of all.
    """

    def __init__(self, max_body_bytes: int, max_held_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._taken_up_to_bytes = max_held_bytes
        """The same for requests that begin; less than none once the service ends."""
        self.held_bytes = 0
        """What all requests hold now."""

    def close(self) -> None:
        """Takes no more requests; those that have begun go on."""
        self._taken_up_to_bytes = -1

    def admit(self, policy: BatchPolicy, priority: int, body_bytes: int, now_s: float) -> None:
        """Holds a request of such a size, for a version that is likely to answer it, until :meth:`release`.

        Raises:
            RequestRefused: it is too large or cannot be answered in time, or the service ends.
        """
        if body_bytes > self.max_body_bytes:
            raise RequestRefused(413, f"`body` must have at most {self.max_body_bytes} bytes, got {body_bytes}")
        held_bytes = self.held_bytes + body_bytes
        if held_bytes > self._taken_up_to_bytes:
            raise self._full(body_bytes)
        refuse_late(policy, priority, now_s)
        self.held_bytes = held_bytes

    def begin(self, num_bytes: int) -> None:
        """Holds what a request takes; raises :class:`RequestRefused` where all hold too much or the service ends."""
        held_bytes = self.held_bytes + num_bytes
        if held_bytes > self._taken_up_to_bytes:
            raise self._full(num_bytes)
        self.held_bytes = held_bytes

    def grow(self, num_bytes: int, held_bytes: int = 0) -> None:
        """Holds so much more for one that has begun; raises :class:`RequestRefused` where all hold too much.

        Args:
            num_bytes: more.
            held_bytes: that it holds before.
        """
        if self.held_bytes + num_bytes > self._max_held_bytes:
            raise self._full(held_bytes + num_bytes)
        self.held_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        """A request that held so much has ended."""
        self.held_bytes -= num_bytes

    def _full(self, own_bytes: int) -> RequestRefused:
        """Why a request has no room for so much: another try helps only where others have taken it."""
        if own_bytes > self._max_held_bytes:
            most = self._max_held_bytes
            return RequestRefused(413, f"`body` must need at most {most} bytes to be answered, got {own_bytes}")
        if self._taken_up_to_bytes < 0:
            return too_late(1.0, "the service ends")
        return too_late(
            1.0, f"requests hold {self.held_bytes} of {self._max_held_bytes} bytes, and this needs {own_bytes}"
        )


class HeldBody:
    """The bytes that one request holds while its body arrives, whether it says how many or not.

    Args:
        admission: that has admitted it.
        num_bytes: with so many.
    """

    def __init__(self, admission: RequestAdmission, num_bytes: int) -> None:
        self._admission = admission
        self.num_bytes = num_bytes

    def arrived(self, size: int) -> None:
        """Holds more if so many have come; raises :class:`RequestRefused` if that is too much, for one or for all."""
        admission = self._admission
        if size > admission.max_body_bytes:
            raise RequestRefused(413, f"`body` must have at most {admission.max_body_bytes} bytes, got more")
        if size > self.num_bytes:
            admission.grow(size - self.num_bytes, self.num_bytes)
            self.num_bytes = size


def refuse_late(policy: BatchPolicy, priority: int, now_s: float) -> None:
    """Raises :class:`RequestRefused` for a request that cannot be answered in time."""
    retry_s = policy.refusal_s(now_s, priority)
    if retry_s is not None:
        raise too_late(retry_s, "the service has as much to do as it can answer in time")
