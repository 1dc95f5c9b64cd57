"""The agent: ours, which lies beside this package, or one of the operator's, which is named by a URL."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
import zipfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from shepherd_core.adapters import aws, locations
from shepherd_core.domain.errors import AgentMismatch, SourceError, SourceUnavailable

_SOURCES = Path(__file__).parents[2] / "shepherd_agent"
_START = b"""\
import sys
if sys.version_info < (3, 9):
    sys.exit("the agent needs Python 3.9 or newer, and python3 is " + sys.version.split()[0])
from shepherd_agent.__main__ import main
sys.exit(main())
"""
_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK_BYTES = 1024 * 1024

if TYPE_CHECKING:

    class _Readable(Protocol):
        def read(self, size: int, /) -> bytes: ...


class AgentFile:
    """An agent, in a file without a name: nobody else can read or replace it, and it goes with this object."""

    def __init__(self, source: _Readable) -> None:
        """Copy *source*, in constant memory."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the next line
        weakref.finalize(self, self._file.close)
        sha256 = hashlib.sha256()
        while chunk := source.read(_CHUNK_BYTES):
            sha256.update(chunk)
            self._file.write(chunk)
        self._file.flush()
        self.sha256, self.size = sha256.hexdigest(), self._file.tell()

    def open(self) -> BinaryIO:
        """Return the content, open for reading from the beginning; the caller closes it. Any number may be open."""
        return Path(f"/proc/self/fd/{self._file.fileno()}").open("rb")


@cache
def our_agent() -> AgentFile:
    """
    Return our agent: one executable file that needs only Python 3.9 or newer.

    The same sources give the same bytes, on any machine.
    """
    with tempfile.TemporaryFile() as archive:
        archive.write(_SHEBANG)
        with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as zipped:  # versions of zlib compress differently
            _add(zipped, "__main__.py", _START)
            for source in sorted(_SOURCES.rglob("*.py")):
                _add(zipped, source.relative_to(_SOURCES.parent).as_posix(), source.read_bytes())
        archive.seek(0)
        return AgentFile(archive)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3  # Unix, on whatever system it is built
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


class OperatorsAgent:
    """The agent at *url*, a path or ``s3://BUCKET/KEY``; with *sha256* (hexadecimal), only the content that has it."""

    def __init__(self, url: str, sha256: str | None = None, bucket_owner: str | None = None) -> None:
        """S3 refuses a bucket that does not belong to the account *bucket_owner*, if it is given."""
        self._url = url
        self._sha256 = sha256
        self._bucket_owner = bucket_owner
        self._s3: Any = None
        self._kept: tuple[str, AgentFile] | None = None

    def fetch(self) -> AgentFile:
        """
        Return the current content; never an older version. An object is downloaded again only when its ETag changed.

        Raises:
            SourceMissing: there is no such file or object, or the caller may not read it.
            SourceUnavailable: no answer, an incomplete one, or no space for it. May be retried later.
            AgentMismatch: the content has another SHA-256.
            SourceError: the URL is invalid.
        """
        found = self._fetch()
        if self._sha256 not in (None, found.sha256):
            raise AgentMismatch(f"{self._url!r} has the SHA-256 {found.sha256} instead of {self._sha256}")
        return found

    def _fetch(self) -> AgentFile:
        scheme = locations.scheme(self._url)
        if scheme == "":
            with locations.file_errors(self._url), Path(self._url).open("rb") as file:
                return AgentFile(file)
        if scheme != "s3":
            raise SourceError(f"{self._url!r} is not valid; use a path or s3://BUCKET/KEY")
        try:
            with locations.s3_errors(self._url):
                return self._object()
        except OSError as error:
            raise SourceUnavailable(f"{self._url!r} could not be kept: {locations.reason(error)}") from error

    def _object(self) -> AgentFile:
        self._s3 = self._s3 or aws.client("s3")
        answer = locations.get_object(self._s3, self._url, self._bucket_owner, self._kept and self._kept[0])
        if answer is None and self._kept is not None:
            return self._kept[1]
        self._kept = None  # outdated, and there may be no space for two
        # One answer holds one version of the object, even if it is replaced meanwhile; a download is never
        # resumed. botocore checks the length, and the checksum if the object has one.
        with closing(answer["Body"]) as body:
            found = AgentFile(body)
        self._kept = answer["ETag"], found
        return found
