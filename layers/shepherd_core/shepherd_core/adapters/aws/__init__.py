"""AWS clients with short time limits, and the classification of their errors."""

from __future__ import annotations

import logging
import threading
from enum import Enum, auto
from typing import Any

_CONNECT_SECONDS = 3
_READ_SECONDS = 10
_ATTEMPTS = 3
_PASSING = {"RequestTimeout", "RequestTimeoutException", "SlowDown", "RequestLimitExceeded", "TooManyUpdates"}
_ABSENT = {"ParameterNotFound", "NoSuchKey", "NoSuchBucket", "404"}
_DENIED = {"403", "UnauthorizedOperation"}
_UNSET = {
    "NoRegionError": "no region is set: set AWS_DEFAULT_REGION",
    "NoCredentialsError": "no credentials were found: set AWS_PROFILE, or log in",
}
_BLOB = " Encoded authorization failure message:"  # EC2 appends it: long, and useless in a log
_making = threading.Lock()  # boto3 may create clients in one thread at a time; using them is safe in any
_REFUSED, _TOO_MANY, _SERVER_ERROR, _UNAVAILABLE = 400, 429, 500, 503


class AwsFault(Enum):
    """The classes of AWS errors."""

    PASSING = auto()
    """Temporary: the same call may succeed later."""
    ABSENT = auto()
    """The named resource does not exist."""
    DENIED = auto()
    """The caller lacks the permission."""
    REFUSED = auto()
    """Any other refusal: something must be changed first."""


def client(service: str, attempts: int = _ATTEMPTS) -> Any:
    """
    Return a new boto3 client that tries each call *attempts* times in all; it may be used from any thread.

    A call takes about 70 seconds at worst: three attempts with 3 seconds to connect, 10 until an answer begins and 10
    until it ends. An answer has the limits of ``bounded_answer``.

    Raises:
        BotoCoreError: no region is set, or another AWS setting is wrong.
    """
    import boto3  # noqa: PLC0415 - takes half a second, so only when needed
    from botocore.config import Config  # noqa: PLC0415 - the same

    from shepherd_core.adapters.aws import answers  # noqa: PLC0415 - the same

    logging.getLogger("botocore").setLevel(logging.WARNING)  # it logs where it found credentials, at every cold start
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": attempts},
    )
    with _making:
        made = boto3.client(service, config=config)
    answers.limit(made)
    return made


def use_region(region: str) -> None:
    """Let every client that is made from now on be of *region*, whatever the environment says."""
    import boto3  # noqa: PLC0415 - as above

    boto3.setup_default_session(region_name=region)


def classify(error: BaseException | None) -> tuple[AwsFault, str]:
    """
    Return the class of *error*, and a name for it that repeats nothing of the request.

    AWS's own messages are left out, because some of them repeat the request. The message of a
    denial is kept, because it says who lacks which permission on what.
    """
    from botocore.exceptions import (  # noqa: PLC0415 - loaded already, if it is an error of botocore
        BotoCoreError,
        ClientError,
        ConnectionError,  # noqa: A004 - the name that botocore gave it
        CredentialRetrievalError,
        FlexibleChecksumError,
        HTTPClientError,
        IncompleteReadError,
    )

    if not isinstance(error, ClientError):
        passing = (
            ConnectionError,
            CredentialRetrievalError,
            FlexibleChecksumError,
            HTTPClientError,
            IncompleteReadError,
        )
        # Errors that are not botocore's own come from answers that it could not parse, such as truncated ones.
        wrong = isinstance(error, BotoCoreError) and not isinstance(error, passing)
        name = type(error).__name__
        return (AwsFault.REFUSED if wrong else AwsFault.PASSING), _UNSET.get(name, name)
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _PASSING or "throttl" in code.lower() or status == _TOO_MANY or status >= _SERVER_ERROR:
        return AwsFault.PASSING, code
    if code in _ABSENT:
        return AwsFault.ABSENT, code
    if "AccessDenied" in code or code in _DENIED:
        message = str(error.response["Error"].get("Message", ""))
        return AwsFault.DENIED, f"{code}: {message.partition(_BLOB)[0]}"
    return AwsFault.REFUSED, code


def declined(error: BaseException) -> bool:
    """Return whether AWS certainly did not carry out the request."""
    from botocore.exceptions import (  # noqa: PLC0415 - as above
        BotoCoreError,
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
    )

    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return bool(_REFUSED <= status < _SERVER_ERROR or status == _UNAVAILABLE)
    return isinstance(error, ConnectTimeoutError | EndpointConnectionError) or (
        isinstance(error, BotoCoreError) and classify(error)[0] is AwsFault.REFUSED
    )
