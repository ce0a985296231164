# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
"""S3 and compatible stores as a source: every GET names the wanted ETag, and every answer is checked.

``s3fs.cat_file`` sends no ``If-Match`` and drops the ETag of the answer, so requests go one step below it, through the
same session, credentials and retries.
"""

from __future__ import annotations

import time
from typing import Any

from fsspec.asyn import sync

from stoker.cache.sources.retrying import retried
from stoker.cache.sources.source import ObjectInfo, changed, check_length, check_version, misread, version_of
from stoker.cache.versions import Strength, Version
from stoker.core.errors import SourceReadError


class S3Source:
    """Reads objects of S3 by conditional GET."""

    def __init__(self, target: Any, namespace: str) -> None:
        """Wraps a filesystem.

        Args:
            target: a private ``S3FileSystem`` that caches no listings.
            namespace: tells this store from every other.
        """
        self.target = target
        self.namespace = namespace

    def info(self, path: str) -> ObjectInfo:
        """What a HEAD says now."""
        self.target.invalidate_cache(path)
        details = dict(self.target.info(path))
        return ObjectInfo(self._version(details), details)

    def read(self, path: str, start: int, end: int, version: Version) -> bytes:
        """Bytes of the one object that carries the version's ETag."""
        return retried(lambda: self._read(path, start, end, version))

    def first(self, path: str, length: int) -> tuple[ObjectInfo, bytes]:
        """The first bytes and the version in one GET, where the object is not empty."""
        found = retried(lambda: self._first(path, length))
        if found is not None:
            return found
        info = self.info(path)
        end = min(length, info.version.size)
        return info, self.read(path, 0, end, info.version) if end else b""

    def versions(self, folder: str, most: int) -> dict[str, Version]:
        """Versions of the objects in a folder, by path; none where objects have versions that listings do not tell."""
        bucket, prefix, _ = self.target.split_path(folder)
        if self.target.version_aware or not bucket:
            return {}
        arguments = {"Bucket": bucket, "Prefix": f"{prefix}/" if prefix else "", "Delimiter": "/"}
        found: dict[str, Version] = {}
        while True:
            page: Any = sync(self.target.loop, self.target._call_s3, "list_objects_v2", **arguments)
            for entry in page.get("Contents", ()):
                details = {"type": "file", "size": entry["Size"], **entry}
                found[f"{bucket}/{entry['Key']}"] = self._version(details)
            if not page.get("IsTruncated") or len(found) >= most:
                return found
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def _version(self, details: dict[str, Any]) -> Version:
        version = version_of(details, time.time())
        version_id = details.get("VersionId")
        if self.target.version_aware and version_id and version_id != "null" and version.strength is Strength.ETAG:
            return Version(Strength.VERSIONED, f"{version.token} {version_id}", version.size)
        return version

    def _read(self, path: str, start: int, end: int, version: Version) -> bytes:
        if end <= start:
            return b""
        bucket, key, version_id = self.target.split_path(path)
        wanted: dict[str, Any] = {}
        if version.strength >= Strength.ETAG:
            etag, _, stored_id = version.token.partition(" ")
            wanted["IfMatch"] = etag
            version_id = stored_id or version_id
        if version_id:
            wanted["VersionId"] = version_id
        try:
            answer, data = self._get(path, bucket, key, start, end, wanted)
        except FileNotFoundError:
            raise changed(path, "is gone") from None
        except OSError as error:
            if _code(error) not in _OUT_OF_RANGE:
                raise
            found, data = None, b""
        else:
            found = self._version(_details(path, answer))
            if found.token.partition(" ")[0] == version.token.partition(" ")[0]:
                found = Version(version.strength, version.token, found.size)  # not all answers state an id
        check_version(self, path, start, end, found, version)
        return check_length(path, start, end, data)

    def _first(self, path: str, length: int) -> tuple[ObjectInfo, bytes] | None:
        bucket, key, version_id = self.target.split_path(path)
        if not key:
            return None
        try:
            answer, data = self._get(path, bucket, key, 0, length, {"VersionId": version_id} if version_id else {})
        except FileNotFoundError:
            return None  # it may be a directory, or empty; asking for the description tells
        except OSError as error:
            if _code(error) in _OUT_OF_RANGE:
                return None
            raise
        details = _details(path, answer)
        info = ObjectInfo(self._version(details), details)
        return info, check_length(path, 0, min(length, info.version.size), data)

    def _get(
        self, path: str, bucket: str, key: str, start: int, end: int, wanted: dict[str, Any]
    ) -> tuple[dict[str, Any], bytes]:
        """One GET: the answer's head and the bytes, which are those of the range that the answer states."""
        arguments = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}", **wanted}
        try:
            answer: Any = sync(self.target.loop, self._get_async, path, start, end, arguments)
            return answer
        except (FileNotFoundError, SourceReadError):
            raise
        except OSError as error:
            code = _code(error)
            if code in ("PreconditionFailed", "412"):
                raise changed(path) from None
            if code and not code.startswith("5") and code not in _TEMPORARY:
                raise
            raise misread(path, start, end, _short(error)) from error
        except TypeError:
            raise  # an option that nobody knows: asking again is of no use
        except Exception as error:
            # Whatever the HTTP library makes of a connection that broke, stalled or lied about its length.
            raise misread(path, start, end, _short(error)) from error

    async def _get_async(
        self, path: str, start: int, end: int, arguments: dict[str, Any]
    ) -> tuple[dict[str, Any], bytes]:
        answer = await self.target._call_s3("get_object", **arguments)
        body = answer["Body"]
        try:
            length = int(answer["ContentLength"])
            first, last, _ = _range_of(answer, length)
            if first != start or last > end or length != last - first:
                # The server took no notice of the range: its body may be any size, so it is not even read.
                raise misread(path, start, end, f"the store sent bytes {first} to {last} and stated {length}")
            return answer, await body.read()
        finally:
            body.close()


_OUT_OF_RANGE = frozenset({"InvalidRange", "416"})
_TEMPORARY = frozenset({"SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "Throttling"})


def _details(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The description of the object, in the words that s3fs uses for a HEAD."""
    _, _, total = _range_of(answer, int(answer["ContentLength"]))
    return {
        "ETag": answer.get("ETag", ""),
        "LastModified": answer.get("LastModified", ""),
        "size": total,
        "name": path,
        "type": "file",
        "StorageClass": answer.get("StorageClass", "STANDARD"),
        "VersionId": answer.get("VersionId"),
        "ContentType": answer.get("ContentType"),
    }


def _range_of(answer: dict[str, Any], length: int) -> tuple[int, int, int]:
    """First byte, byte after the last, and size of the object, of an answer with or without a range."""
    stated = answer.get("ContentRange")
    if not stated:
        return 0, length, length
    span, _, total = str(stated).removeprefix("bytes").strip().partition("/")
    first, _, last = span.partition("-")
    return int(first), int(last) + 1, int(total)


def _code(error: BaseException) -> str:
    """What S3 calls an error that s3fs translated; empty for one that is not of S3."""
    cause = error if hasattr(error, "response") else error.__cause__
    response: Any = getattr(cause, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    return code or str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]
