"""Every failure that stoker itself raises at run time: one base class, one class per kind of failure.

Callers' mistakes are ``ValueError`` / ``TypeError`` at construction, raised where they are found. Exceptions of the
user's code keep their type and never become one of these. All classes keep their fields and pickle cleanly, since they
may pass between processes.

A program can catch what plain python would raise in the same situation: where torch's loader raises ``RuntimeError``
(a data worker is dead, hangs, cannot be replaced), ours are RuntimeErrors too and begin with torch's words; a file that
cannot be read is an ``OSError``. What cannot happen without stoker (different results, a step that cannot be computed)
is neither: a program that retries after RuntimeErrors must not ignore it.
"""

from __future__ import annotations


class StokerError(Exception):
    """Base of all run-time failures of stoker; catch this to catch them all."""

    code = "STOKER1000"

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.fields = fields

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args[0], self.fields)

    def __str__(self) -> str:
        return f"{self.args[0]} [{self.code}]"


def _rebuild(kind: type[StokerError], message: str, fields: dict[str, object]) -> StokerError:
    return kind(message, **fields)


class ConfigError(StokerError):
    """A setting from the command line, the environment or a file is unknown or has a wrong value."""

    code = "STOKER1001"


class MissingExtraError(StokerError, ImportError):
    """A feature needs an optional package that is not installed; the message holds the exact pip line."""

    code = "STOKER1002"


class WireError(StokerError):
    """Bytes received from a data worker or a node of the cache are not a well-formed message."""

    code = "STOKER1101"


def dead_worker(pid: int) -> str:
    """The words of torch's loader about a dead worker, which programs look for before they restart."""
    return f"DataLoader worker (pid(s) {pid}) exited unexpectedly"


def end_of_worker(pid: int, cause: str) -> str:
    """How a data worker ended; if a signal killed it, in the words of torch's loader."""
    signalled = cause.startswith("killed by signal: ")
    return f"DataLoader worker (pid {pid}) is {cause}" if signalled else f"the last one {cause}"


class WorkerStartError(StokerError, RuntimeError):
    """No data worker could be started for a loader, and no tier below can serve it either."""

    code = "STOKER1201"


class WorkerLostError(StokerError, RuntimeError):
    """Data workers keep dying (or keep hanging) without any sample being the cause."""

    code = "STOKER1202"


class SampleKillsWorkerError(StokerError, RuntimeError):
    """One sample killed (or hung) its data worker twice. Fields: index, path, seed, replay."""

    code = "STOKER1203"


class StreamNotRepeatableError(StokerError, RuntimeError):
    """A shard of an iterable dataset was replayed after its worker died and yielded different samples."""

    code = "STOKER1204"


class DifferentResultError(StokerError):
    """A sample computed in a data worker differs from the same sample computed in the training process."""

    code = "STOKER1205"


class BatchWrittenError(StokerError):
    """A call that data workers ran cannot be repeated in the program: its batch was written to since, undetected."""

    code = "STOKER1206"


class ResumeError(StokerError):
    """A saved loader state does not fit the loader it is given to."""

    code = "STOKER1301"


class RunFolderError(StokerError):
    """A run folder is missing, unreadable, or of a newer format than this stoker reads."""

    code = "STOKER1401"


class CacheError(StokerError):
    """Base of all failures of the data cache."""

    code = "STOKER1410"


class SourceChangedError(CacheError, OSError):
    """An object of the store changed while it was being read; bytes of two versions are never mixed.

    Fields: path.
    """

    code = "STOKER1420"


class SourceReadError(CacheError, OSError):
    """The store kept answering wrongly: too few bytes, another range, no answer. Fields: path, start, end."""

    code = "STOKER1421"


class CacheDirectoryError(CacheError):
    """The page store's directory cannot be used: of another format or user, not writable, not empty, not local."""

    code = "STOKER1411"


class CacheUnwritableError(CacheDirectoryError):
    """The page store's directory cannot be created or written: a full disk, a read-only one, no permission.

    Fields: path.
    """

    code = "STOKER1413"


class CacheBusyError(CacheError):
    """Another process has held a lock of the page store for so long that it must be stopped; reads continue."""

    code = "STOKER1412"


class ModelFileError(CacheError, ValueError):
    """A file does not have the model format that it was opened as. Fields: path."""

    code = "STOKER1430"


class ClusterError(CacheError):
    """Base of all failures between the nodes of a cache; a program's reads fall back to the store instead."""

    code = "STOKER1440"


class MembershipError(ClusterError):
    """The members of the cluster cannot be determined: a wrong address, an unreadable ring record, no answer."""

    code = "STOKER1441"


class PeerRefusedError(ClusterError):
    """A cache worker answered that it will not serve this: wrong secret, unknown mount, no permission."""

    code = "STOKER1442"


class PeerLostError(ClusterError):
    """A cache worker does not answer: no connection, no bytes within the time-out, or a broken stream."""

    code = "STOKER1443"


class ExchangeError(StokerError, RuntimeError):
    """An exchange between ranks ended: one died, stopped, was cut off, left, or exchanges something else.

    Fields: rank, layer, step.
    """

    code = "STOKER1601"


class ClusterStartError(StokerError):
    """A cluster of Ray on this machine does not start, or does not end."""

    code = "STOKER1451"


class JobTableError(StokerError):
    """A table of jobs cannot be read, or a value in it breaks its rule. Fields: path, row, column, value, rule."""

    code = "STOKER1502"


class TracingError(StokerError):
    """A program cannot be characterised as it is: a size depends on values, or no step was found.

    Fields: operation, where.
    """

    code = "STOKER1511"


class FitError(StokerError):
    """A program cannot be made to fit the memory that it has; raised before it starts."""

    code = "STOKER1512"


class AveragingError(StokerError):
    """Ranks whose model is averaged do not train the same weights. Fields: rank, step."""

    code = "STOKER1611"


class ModelImportError(StokerError):
    """A module cannot become a graph of integers: an operation, size or weight is not supported. Fields: where."""

    code = "STOKER1701"


class CalibrationError(StokerError):
    """The samples that ranges are taken from do not do: none, not finite, or of another shape. Fields: value."""

    code = "STOKER1702"


class PackageError(StokerError):
    """A package of an integer model is missing, damaged, or of a newer format. Fields: path."""

    code = "STOKER1703"


class ToolError(StokerError):
    """A tool for hardware cannot be started, fails, takes too long, or its kept result was changed."""

    code = "STOKER1711"


class DeviceTooSmallError(StokerError):
    """An FPGA has too little of what a design takes. Fields: device, resource, taken, available."""

    code = "STOKER1712"


class ServingError(StokerError):
    """A model cannot be served: it does not load, its engines do not start, or it is asked what it has not."""

    code = "STOKER1801"


class ModelChangedError(StokerError):
    """A version of a model cannot be loaded again: its files are gone, or are not those that it was loaded from."""

    code = "STOKER1802"
