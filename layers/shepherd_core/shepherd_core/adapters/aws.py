"""AWS as Shepherd calls it: clients with short time limits, and what their errors mean."""

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
_BLOB = " Encoded authorization failure message:"  # EC2's, at length, and of use to nobody who reads a log
_making = threading.Lock()  # boto3 makes clients in one thread at a time; to use them is safe in any
_REFUSED, _TOO_MANY, _SERVER_ERROR, _UNAVAILABLE = 400, 429, 500, 503


class Fault(Enum):
    """What an AWS error means to us."""

    PASSING = auto()
    """The same call may work later."""
    ABSENT = auto()
    """What was named is not there."""
    DENIED = auto()
    """This function may not do that."""
    REFUSED = auto()
    """Any other refusal: it will not work until somebody changes something."""


def client(service: str, attempts: int = _ATTEMPTS) -> Any:
    """
    Return a new boto3 client, which tries each call so many times in all; it may be used from any thread.

    A call takes some 40 seconds at worst: three attempts at 3 seconds to connect and 10 for an answer.

    Raises:
        BotoCoreError: no region is set, or another setting of AWS's own is wrong.
    """
    import boto3  # noqa: PLC0415 - half a second, spent only by who needs it
    from botocore.config import Config  # noqa: PLC0415 - the same

    logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells where it found credentials, at every cold start
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": attempts},
    )
    with _making:
        return boto3.client(service, config=config)


def fault(error: BaseException | None) -> tuple[Fault, str]:
    """
    Return what *error* means, and a name for it that holds nothing of what was sent.

    AWS's own sentences are left out, because some of them repeat the request; of a denial they
    are kept, because there they say who lacks which permission on what.
    """
    from botocore.exceptions import (  # noqa: PLC0415 - loaded by now, if it is an error of botocore's
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
        # What is not botocore's own comes of an answer of which it made nothing, as when one broke off.
        wrong = isinstance(error, BotoCoreError) and not isinstance(error, passing)
        return (Fault.REFUSED if wrong else Fault.PASSING), type(error).__name__
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _PASSING or "throttl" in code.lower() or status == _TOO_MANY or status >= _SERVER_ERROR:
        return Fault.PASSING, code
    if code in _ABSENT:
        return Fault.ABSENT, code
    if "AccessDenied" in code or code in _DENIED:
        message = str(error.response["Error"].get("Message", ""))
        return Fault.DENIED, f"{code}: {message.partition(_BLOB)[0]}"
    return Fault.REFUSED, code


def declined(error: BaseException) -> bool:
    """Return whether it is certain that AWS did not do what was asked for."""
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
        isinstance(error, BotoCoreError) and fault(error)[0] is Fault.REFUSED
    )
