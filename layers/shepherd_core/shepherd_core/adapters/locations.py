"""
The places of the operator's files: the forms of their URLs, and the reading of a path or of S3.

A URL is a setting and not a secret: errors name it in full. A URL that holds a
user or a password is refused.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shepherd_core.adapters import aws
from shepherd_core.domain.errors import SourceError, SourceMissing, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_MODIFIED = 304


def scheme(url: str) -> str:
    """Return ``ssm``, the part before ``://``, or an empty text for a path."""
    if url.startswith("ssm:"):
        return "ssm"
    scheme, separator, rest = url.partition("://")
    if not separator:
        return ""
    if "@" in rest.partition("/")[0]:
        # Without the URL, which holds the secret.
        raise SourceError(f"a {scheme}:// URL holds a user or a password; use one without")
    return scheme.lower()


def get_object(s3: Any, url: str, bucket_owner: str | None, known_etag: str | None = None) -> Any:
    """Return the answer to GetObject, or None if the object still has *known_etag*."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - loaded with boto3 already

    bucket, _, key = url.partition("://")[2].partition("/")
    if not bucket or not key:
        raise SourceError(f"{url!r} is not valid; use s3://BUCKET/KEY")
    try:
        conditions = {"ExpectedBucketOwner": bucket_owner, "IfNoneMatch": known_etag}
        return s3.get_object(Bucket=bucket, Key=key, **{name: value for name, value in conditions.items() if value})
    except ClientError as error:
        if known_etag and error.response["ResponseMetadata"]["HTTPStatusCode"] == _NOT_MODIFIED:
            return None
        raise


@contextmanager
def file_errors(url: str) -> Iterator[None]:
    """Raise what the file system answers as an error of the source at *url*."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise SourceMissing(f"{url!r} could not be read: {reason(error)}; it must be a readable file") from error
    except OSError as error:
        raise SourceUnavailable(f"{url!r} could not be read: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Return what the system says of *error*, without the path."""
    return error.strerror or type(error).__name__


@contextmanager
def s3_errors(url: str) -> Iterator[None]:
    """Raise what S3 answers, while a body is read too, as an error of the source at *url*."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - boto3 is about to be loaded
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - the same

    try:
        yield
    except HTTPError as error:  # botocore does not wrap some of these while a body is read
        raise SourceUnavailable(f"{url!r} was cut off: {type(error).__name__}") from error
    except (BotoCoreError, ClientError) as error:
        meaning, code = aws.classify(error)
        if meaning is aws.AwsFault.PASSING:
            raise SourceUnavailable(f"{url!r} gave no complete answer: {code}") from error
        if meaning is aws.AwsFault.DENIED:
            raise SourceMissing(f"{url!r} does not exist, or you may not do this: {code}") from error
        raise SourceMissing(f"{url!r} could not be read: {code}") from error
