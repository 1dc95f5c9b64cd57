"""
What the operator names by a URL: small documents to read, and the agent, a file too large for memory.

A URL is a setting and as such no secret: errors name it in full. One that
holds a user or a password is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from shepherd_core.adapters import aws
from shepherd_core.adapters.secrets import SsmSecretStore
from shepherd_core.domain.errors import SecretError, SourceError, SourceMissing, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_DOCUMENT_BYTES = 10 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_CONNECT_SECONDS = 5
_READ_SECONDS = 10
_OK, _NOT_MODIFIED, _SERVER_ERROR = 200, 304, 500
_PASSING = (408, 425, 429)


def read(url: str, limit_bytes: int = _DOCUMENT_BYTES) -> bytes:
    """
    Return the document at *url*: a path, ``https://…``, ``ssm:NAME`` or ``s3://BUCKET/KEY``.

    ``http://`` is accepted for loopback addresses alone, and no redirect is
    followed. Every call reads anew; whoever needs the document more than once
    in an invocation keeps it.

    Raises:
        SourceMissing: there is no such document, or this function may not read it.
        SourceUnavailable: it did not answer, or not to the end. May be tried again later.
        SourceError: the URL is not understood, or the document is larger than *limit_bytes*.
    """
    scheme = _scheme(url)
    if scheme == "ssm":
        content = _read_parameter(url)
    elif scheme == "s3":
        with _s3_errors(url), closing(_get_object(aws.client("s3"), url)["Body"]) as body:
            content = body.read(limit_bytes + 1)
    elif scheme in ("http", "https"):
        content = _read_http(url, limit_bytes)
    elif scheme == "":
        with _file_errors(url), Path(url).open("rb") as file:
            content = file.read(limit_bytes + 1)
    else:
        raise SourceError(f"{url!r} is not understood: a path, https://…, ssm:NAME or s3://BUCKET/KEY was wanted")
    if len(content) > limit_bytes:
        raise SourceError(f"{url!r} is too large: at most {limit_bytes} bytes were wanted")
    return content


@dataclass(slots=True)
class AgentFile:
    """A file that is too large for memory, and what is known of its content."""

    sha256: str
    """Hexadecimal."""
    size: int
    """Bytes."""
    _url: str = field(repr=False)
    _path: Path
    _identity: tuple[int, ...] = field(repr=False)

    def open(self) -> BinaryIO:
        """
        Return the content, open for reading at its beginning; the caller closes it. Any number may be open.

        Raises:
            SourceUnavailable: the file was replaced since it was fetched, so that ``sha256`` says
                nothing about it any more. Fetch it again.
        """
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise SourceUnavailable(f"{self._url!r} was fetched, but {_told(error)}; fetch it again") from error
        if _identity(file) != self._identity:
            file.close()
            raise SourceUnavailable(f"{self._url!r} was replaced since it was fetched; fetch it again")
        return file


class AgentCache:
    """
    The agent, from where the operator keeps it to a file that can be opened at once.

    A local file is used where it lies. An object in S3 is kept in *folder*,
    one version at a time, and downloaded again only when its ETag has changed:
    keep the folder between warm invocations. Any number of threads and
    processes may share a folder.
    """

    # The name of a kept file says all that is known of it: hash of the URL, ETag, SHA-256 of the
    # content. It gets the name when it is complete, so there is nothing that could contradict it.

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._s3: Any = None
        self._hashed: dict[str, tuple[tuple[int, ...], str]] = {}

    def fetch(self, url: str) -> AgentFile:
        """
        Return what *url*, a path or ``s3://BUCKET/KEY``, holds now; never an older version.

        Takes constant memory. Asks S3 every time, with one request; hashes a
        local file again only when it has changed.

        Raises:
            SourceMissing: there is no such file or object, or this function may not read it.
            SourceUnavailable: it did not answer, broke off, changed while it was read, or found no
                room in the folder. May be tried again later.
            SourceError: the URL is not understood.
        """
        scheme = _scheme(url)
        if scheme == "":
            return self._local(url)
        if scheme != "s3":
            raise SourceError(f"{url!r} is not understood: a path or s3://BUCKET/KEY was wanted")
        try:
            with self._alone(url) as stem, _s3_errors(url):
                return self._object(url, stem)
        except OSError as error:
            raise SourceUnavailable(f"{url!r} could not be kept in {self._folder}: {_told(error)}") from error

    def _local(self, url: str) -> AgentFile:
        with _file_errors(url), Path(url).open("rb") as file:
            identity = _identity(file)
            known, sha256 = self._hashed.get(url, (None, ""))
            if known != identity:
                sha256 = _copy(file, None)
                if _identity(file) != identity:
                    raise SourceUnavailable(f"{url!r} changed while it was read")
                self._hashed[url] = identity, sha256
            return AgentFile(sha256, os.fstat(file.fileno()).st_size, url, Path(url), identity)

    def _object(self, url: str, stem: str) -> AgentFile:
        kept = next(self._folder.glob(f"{stem}.*.kept"), None)
        self._s3 = self._s3 or aws.client("s3")
        etag = bytes.fromhex(kept.name.split(".")[1]).decode() if kept else None
        answer = _get_object(self._s3, url, etag)
        if answer is None and kept is not None:
            return _kept(url, kept)
        # One answer holds one version of the object, however often it is replaced meanwhile; a download
        # is never resumed. botocore checks the length, and the checksum where the object has one.
        with closing(answer["Body"]) as body:
            if kept is not None:
                kept.unlink()  # of no use any more, and /tmp may have no room for two
            partial = self._folder / f"{stem}.partial"
            with partial.open("wb") as file:  # overwrites what a killed invocation left behind
                sha256 = _copy(body, file)
        return _kept(url, partial.rename(self._folder / f"{stem}.{answer['ETag'].encode().hex()}.{sha256}.kept"))

    @contextmanager
    def _alone(self, url: str) -> Iterator[str]:
        """Wait until nobody else fetches *url* into the folder; give the beginning of its file names there."""
        stem = hashlib.sha256(url.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{stem}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, however that ends
            yield stem


def _kept(url: str, path: Path) -> AgentFile:
    with path.open("rb") as file:
        return AgentFile(path.name.split(".")[2], os.fstat(file.fileno()).st_size, url, path, _identity(file))


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
    """Return what changes when the content of a file does."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _scheme(url: str) -> str:
    """Return ``ssm``, what stands before ``://``, or nothing for a path."""
    if url.startswith("ssm:"):
        return "ssm"
    scheme, separator, rest = url.partition("://")
    if not separator:
        return ""
    if "@" in rest.partition("/")[0]:
        # Without the URL, which would tell.
        raise SourceError(f"a {scheme}:// URL holds a user or a password; one without was wanted")
    return scheme.lower()


def _read_parameter(url: str) -> bytes:
    try:
        return SsmSecretStore().get(url.removeprefix("ssm:")).encode()
    except SecretError as error:
        kind = SourceUnavailable if error.retryable else SourceMissing
        raise kind(f"{url!r} could not be read: {error}") from error


def _get_object(s3: Any, url: str, known_etag: str | None = None) -> Any:
    """Return the answer to GetObject, or None if the object still has *known_etag*."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - loaded with boto3 by now

    bucket, _, key = url.partition("://")[2].partition("/")
    if not bucket or not key:
        raise SourceError(f"{url!r} is not understood: s3://BUCKET/KEY was wanted")
    try:
        return s3.get_object(Bucket=bucket, Key=key, **({"IfNoneMatch": known_etag} if known_etag else {}))
    except ClientError as error:
        if known_etag and error.response["ResponseMetadata"]["HTTPStatusCode"] == _NOT_MODIFIED:
            return None
        raise


def _read_http(url: str, limit_bytes: int) -> bytes:
    import requests  # noqa: PLC0415 - a third of a second, spent only by who needs it

    plain = url.lower().startswith("http:")
    if plain and not _is_loopback(url):
        raise SourceError(f"{url!r} is refused: https:// was wanted, http:// only for a loopback address")
    content = bytearray()
    try:
        with requests.Session() as session:
            session.trust_env = not plain  # through a proxy, loopback would be the proxy's
            time_limits = (_CONNECT_SECONDS, _READ_SECONDS)
            with session.get(url, timeout=time_limits, stream=True, allow_redirects=False) as answer:
                if answer.status_code in _PASSING or answer.status_code >= _SERVER_ERROR:
                    raise SourceUnavailable(f"{url!r} answered {answer.status_code}; 200 was wanted")
                if answer.status_code != _OK:
                    # The rest of an address that is not ours may be somebody's secret.
                    other = answer.headers.get("Location", "").partition("?")[0]
                    redirected = f" and names {other!r}" if other else ""
                    raise SourceMissing(f"{url!r} answered {answer.status_code}{redirected}; 200 was wanted")
                for chunk in answer.iter_content(_CHUNK_BYTES):
                    content += chunk
                    if len(content) > limit_bytes:
                        break
    except requests.exceptions.InvalidURL as error:
        raise SourceError(f"{url!r} is not understood: {error}") from error
    except requests.RequestException as error:
        raise SourceUnavailable(f"{url!r} did not answer to the end: {type(error).__name__}") from error
    return bytes(content)


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name, or no URL at all, which requests will say better
        return False


@contextmanager
def _file_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise SourceMissing(f"{url!r} could not be read: {_told(error)}; a readable file was wanted") from error
    except OSError as error:
        raise SourceUnavailable(f"{url!r} could not be read: {_told(error)}") from error


def _told(error: OSError) -> str:
    return error.strerror or type(error).__name__


@contextmanager
def _s3_errors(url: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - boto3 is about to be loaded
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - the same

    try:
        yield
    except HTTPError as error:  # a few of these pass botocore by while a body is read
        raise SourceUnavailable(f"{url!r} broke off: {type(error).__name__}") from error
    except (BotoCoreError, ClientError) as error:
        meaning, code = aws.fault(error)
        if meaning is aws.Fault.PASSING:
            raise SourceUnavailable(f"{url!r} did not answer to the end: {code}") from error
        if meaning is aws.Fault.DENIED:
            raise SourceMissing(f"{url!r} does not exist, or this function may not read it: {code}") from error
        raise SourceMissing(f"{url!r} could not be read: {code}") from error
