"""The agent: a file too large for memory, which the operator names by a URL."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from shepherd_core.adapters import aws, locations
from shepherd_core.domain.errors import AgentMismatch, SourceError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES = 1024 * 1024
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600


@dataclass(slots=True)
class AgentFile:
    """A file that is too large for memory, with its size and hash."""

    sha256: str
    """Hexadecimal."""
    size: int
    """Bytes."""
    _url: str = field(repr=False)
    _path: Path
    _identity: tuple[int, ...] = field(repr=False)

    def open(self) -> BinaryIO:
        """
        Return the content, open for reading from the beginning; the caller closes it. Any number may be open.

        Raises:
            SourceUnavailable: the file was replaced since it was fetched, so that ``sha256`` does
                not hold any more. Fetch it again.
        """
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise SourceUnavailable(
                f"{self._url!r} was fetched, but {locations.reason(error)}; fetch it again"
            ) from error
        if _identity(file) != self._identity:
            file.close()
            raise SourceUnavailable(f"{self._url!r} was replaced since it was fetched; fetch it again")
        return file


class AgentCache:
    """
    Fetches the agent from the operator's location, as a file that can be opened.

    A local file is used in place. An object in S3 is kept in *folder*,
    one version at a time, and downloaded again only when its ETag has changed:
    keep the folder between warm invocations. Any number of threads and
    processes of one user may share a folder; nobody else can read or write it.
    """

    # The name of a kept file holds the hash of the URL and the ETag. The file gets its name when it is complete. Its
    # content is hashed when this process reads it first: the name proves nothing.

    def __init__(self, folder: Path, bucket_owner: str | None = None) -> None:
        """S3 refuses a bucket that does not belong to the account *bucket_owner*, if it is given."""
        self._folder = folder
        self._bucket_owner = bucket_owner
        self._s3: Any = None
        self._hashed: dict[str, tuple[tuple[int, ...], str]] = {}

    def fetch(self, url: str, sha256: str | None = None) -> AgentFile:
        """
        Return the current content of *url*, a path or ``s3://BUCKET/KEY``; never an older version.

        With *sha256* (hexadecimal), only the content that has it. Takes constant
        memory. Sends S3 one request each time; hashes a file again only when it has
        changed.

        Raises:
            SourceMissing: there is no such file or object, or the caller may not read it.
            SourceUnavailable: no answer, an incomplete one, a change while it was read, or no space
                in the folder. May be retried later.
            AgentMismatch: the content has another SHA-256.
            SourceError: the URL is invalid, or the folder belongs to another user.
        """
        found = self._fetch(url)
        if sha256 is not None and found.sha256 != sha256:
            raise AgentMismatch(f"{url!r} has the SHA-256 {found.sha256} instead of {sha256}")
        return found

    def _fetch(self, url: str) -> AgentFile:
        scheme = locations.scheme(url)
        if scheme == "":
            return self._local(url)
        if scheme != "s3":
            raise SourceError(f"{url!r} is not valid; use a path or s3://BUCKET/KEY")
        try:
            with self._alone(url) as stem, locations.s3_errors(url):
                return self._object(url, stem)
        except OSError as error:
            raise SourceUnavailable(
                f"{url!r} could not be kept in {self._folder}: {locations.reason(error)}"
            ) from error

    def _local(self, url: str) -> AgentFile:
        with locations.file_errors(url):
            return self._file(url, Path(url))

    def _file(self, url: str, path: Path) -> AgentFile:
        with path.open("rb") as file:
            identity = _identity(file)
            known, sha256 = self._hashed.get(url, (None, ""))
            if known != identity:
                sha256 = _copy(file, None)
                if _identity(file) != identity:
                    raise SourceUnavailable(f"{url!r} changed while it was read")
                self._hashed[url] = identity, sha256
            return AgentFile(sha256, os.fstat(file.fileno()).st_size, url, path, identity)

    def _object(self, url: str, stem: str) -> AgentFile:
        kept = next(self._folder.glob(f"{stem}.*.kept"), None)
        self._s3 = self._s3 or aws.client("s3")
        etag = bytes.fromhex(kept.name.split(".")[1]).decode() if kept else None
        answer = locations.get_object(self._s3, url, self._bucket_owner, etag)
        if answer is None and kept is not None:
            return self._file(url, kept)
        # One answer holds one version of the object, even if it is replaced meanwhile; a download is never
        # resumed. botocore checks the length, and the checksum if the object has one.
        with closing(answer["Body"]) as body:
            if kept is not None:
                kept.unlink()  # outdated, and /tmp may have no space for two
            partial = self._folder / f"{stem}.partial"
            with _create(partial) as file:  # overwrites the rest of a killed invocation
                sha256 = _copy(body, file)
                file.flush()
                self._hashed[url] = _identity(file), sha256
        return self._file(url, partial.rename(self._folder / f"{stem}.{answer['ETag'].encode().hex()}.kept"))

    @contextmanager
    def _alone(self, url: str) -> Iterator[str]:
        """Wait until no other process fetches *url* into the folder; yield the stem of its file names there."""
        stem = hashlib.sha256(url.encode()).hexdigest()[:16]
        self._folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        status = self._folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid != os.geteuid():
            raise SourceError(
                f"{self._folder} belongs to another user: delete it, or set TMPDIR to a folder of your own"
            )
        if stat.S_ISLNK(status.st_mode):
            raise SourceError(f"{self._folder} is a link: delete it")
        self._folder.chmod(_PRIVATE_FOLDER)
        with _create(self._folder / f"{stem}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the lock ends with the process in any case
            yield stem


def _create(path: Path) -> BinaryIO:
    """Open *path* for writing, empty, for this user alone."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _PRIVATE_FILE), "wb")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _copy(source: _Readable, target: BinaryIO | None) -> str:
    """Read *source* to its end, write it to *target* if there is one, and return its SHA-256."""
    sha256 = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        sha256.update(chunk)
        if target is not None:
            target.write(chunk)
    return sha256.hexdigest()


def _identity(file: BinaryIO) -> tuple[int, ...]:
    """Return the attributes that change when the content of a file changes."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
