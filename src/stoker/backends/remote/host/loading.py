"""What a host does before a program serves there: receives it, installs its packages, loads it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stoker.backends.remote.host.caching import read_through
from stoker.backends.remote.host.packages import PackageInstall, PackageWord, use
from stoker.backends.remote.host.program import lacking, load, unpack_parcel
from stoker.backends.remote.messages import ProgramAhead, fingerprint_of
from stoker.backends.shipping import Parcel
from stoker.core.errors import WireError
from stoker.feed.program import Program


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedProgram:
    """A program in this process's memory."""

    fingerprint: bytes
    program: Program


class ProgramLoading:
    """A program that comes in.

    Args:
        announced: what the gateway has said about it.
    """

    def __init__(self, announced: ProgramAhead) -> None:
        self._announced = announced
        self._received = bytearray()
        self._parcel: Parcel | None = None
        self._install: PackageInstall | None = None
        self.loaded: LoadedProgram | None = None
        self.refusal = ""
        """Why it can't be loaded; empty while it may be."""

    def fileno(self) -> int:
        """Descriptor that is readable when :meth:`look` has something to do; -1 for none."""
        return self._install.fileno() if self._install is not None else -1

    def add(self, part: bytes) -> None:
        """Takes bytes of it; begins to load it with the last.

        Raises:
            WireError: they are not of it.
        """
        announced = self._announced
        if len(self._received) + len(part) > announced.num_bytes:
            raise WireError("`PART` must be of an announced program, and no longer")
        self._received += part
        if len(self._received) < announced.num_bytes:
            return
        data, self._received = bytes(self._received), bytearray()
        if fingerprint_of(data, announced.setting) != announced.fingerprint:
            raise WireError("`PROGRAM` must have the bytes that its fingerprint was made of")
        self._parcel = unpack_parcel(data)
        if announced.setting.packages:
            self._install = PackageInstall(announced.setting.packages, self._parcel.versions)
        else:
            self.refusal = lacking(self._parcel)

    def look(self) -> list[str]:
        """Gets on with it; lines for people."""
        if self._install is None:
            return []
        words = self._install.hear()
        for word in words:
            if word.folder or word.error:
                self._install = None
                self.refusal = self._installed(word)
        return [word.text for word in words if word.text]

    def _installed(self, word: PackageWord) -> str:
        assert self._parcel is not None
        if word.error:
            line = " ".join(self._announced.setting.packages)
            return f"can't install the packages of `--remote-pip`: {word.error}; there: pip install {line}"
        return use(word.folder) or lacking(self._parcel)

    @property
    def is_ready(self) -> bool:
        """Whether all is there that :meth:`load` needs."""
        return self._parcel is not None and self._install is None and not self.refusal and self.loaded is None

    def load(self) -> str:
        """Loads it, which may take long; a line for people, or empty."""
        assert self._parcel is not None
        announced, cache = self._announced, self._announced.setting.cache
        os.environ.update(announced.setting.environ)
        why = read_through(cache) if cache is not None else ""
        try:
            self.loaded = LoadedProgram(fingerprint=announced.fingerprint, program=load(self._parcel))
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            self.refusal = (
                f"can't load the program ({type(error).__name__}: {text}); install or share there what it imports"
            )
        self._parcel = None
        return f"reads stores directly, since it {why}" if why else ""

    def close(self) -> None:
        """Ends what it has started."""
        if self._install is not None:
            self._install.close()
