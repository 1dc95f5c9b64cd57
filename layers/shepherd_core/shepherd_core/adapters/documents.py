"""Small documents that the operator names by a URL."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from shepherd_core.adapters import aws, locations
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.adapters.http import bounded_answer
from shepherd_core.adapters.http.bounded_answer import AnswerTooLate, AnswerTooLong
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import SecretError, SourceError, SourceMissing, SourceUnavailable
from shepherd_core.settings.functions.shared import is_loopback

_DOCUMENT_BYTES = 10 * 1024 * 1024
_CONNECT_SECONDS = 5
_READ_SECONDS = 10
_TOTAL_SECONDS = 30
_OK, _SERVER_ERROR = 200, 500
_PASSING = (408, 425, 429)


def read(
    url: str, limit_bytes: int = _DOCUMENT_BYTES, bucket_owner: str | None = None, seconds: float = _TOTAL_SECONDS
) -> bytes:
    """
    Return the document at *url*: a path, ``https://…``, ``ssm:NAME`` or ``s3://BUCKET/KEY``.

    ``http://`` is accepted for loopback addresses alone, and no redirect is
    followed; an answer over HTTP takes *seconds* at most. S3 refuses a bucket that
    does not belong to the account *bucket_owner*, if it is given. Every call reads
    the document; a caller that needs it more than once in an invocation keeps it.

    Raises:
        SourceMissing: there is no such document, or the caller may not read it.
        SourceUnavailable: no answer, or an incomplete one. May be retried later.
        SourceError: the URL is invalid, or the document is larger than *limit_bytes*.
    """
    scheme = locations.scheme(url)
    if scheme == "ssm":
        content = _read_parameter(url)
    elif scheme == "s3":
        with (
            locations.s3_errors(url),
            closing(locations.get_object(aws.client("s3"), url, bucket_owner)["Body"]) as body,
        ):
            content = body.read(limit_bytes + 1)
    elif scheme in ("http", "https"):
        content = _read_http(url, limit_bytes, seconds)
    elif scheme == "":
        with locations.file_errors(url), Path(url).open("rb") as file:
            content = file.read(limit_bytes + 1)
    else:
        raise SourceError(f"{url!r} is not valid; use a path, https://…, ssm:NAME or s3://BUCKET/KEY")
    if len(content) > limit_bytes:
        raise _too_large(url, limit_bytes)
    return content


def _read_parameter(url: str) -> bytes:
    try:
        return SsmSecretStore().get(url.removeprefix("ssm:")).encode()
    except SecretError as error:
        kind = SourceUnavailable if error.retryable else SourceMissing
        raise kind(f"{url!r} could not be read: {error}") from error


def _read_http(url: str, limit_bytes: int, seconds: float) -> bytes:
    import requests  # noqa: PLC0415 - takes a third of a second, so only when needed
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - the same

    from shepherd_core.adapters.http.timed_requests import TimedAdapter  # noqa: PLC0415 - the same

    plain = url.lower().startswith("http:")
    if plain and not is_loopback(url):
        raise SourceError(f"{url!r} is refused: use https://; http:// is allowed only for a loopback address")
    deadline = Deadline(SystemClock(), seconds)
    try:
        with requests.Session() as session:
            session.mount(url[: url.index("://") + 3], TimedAdapter(max_retries=0))
            session.trust_env = not plain  # a proxy would connect to its own loopback
            time_limits = (_CONNECT_SECONDS, _READ_SECONDS)
            with session.get(url, timeout=time_limits, stream=True, allow_redirects=False) as answer:
                if answer.status_code in _PASSING or answer.status_code >= _SERVER_ERROR:
                    raise SourceUnavailable(f"{url!r} answered {answer.status_code} instead of 200")
                if answer.status_code != _OK:
                    # The query of a foreign address may hold a secret.
                    other = answer.headers.get("Location", "").partition("?")[0]
                    redirected = f" and redirects to {other!r}" if other else ""
                    raise SourceMissing(f"{url!r} answered {answer.status_code} instead of 200{redirected}")
                return bounded_answer.read(answer.raw, deadline.remaining, limit_bytes)
    except AnswerTooLong:
        raise _too_large(url, limit_bytes) from None
    except AnswerTooLate as error:
        raise SourceUnavailable(f"{url!r} gave no complete answer within {seconds:g} s") from error
    except requests.exceptions.InvalidURL as error:
        raise SourceError(f"{url!r} is not valid: {error}") from error
    except (requests.RequestException, HTTPError) as error:
        raise SourceUnavailable(f"{url!r} gave no complete answer: {type(error).__name__}") from error


def _too_large(url: str, limit_bytes: int) -> SourceError:
    return SourceError(f"{url!r} is too large: it may have at most {limit_bytes} bytes")
