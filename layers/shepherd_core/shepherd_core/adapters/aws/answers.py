"""
Answers of AWS, with the limits of all providers' answers.

botocore reads an answer to its end, however long it is and however slowly it
arrives: its time limits apply to connecting and to each part of an answer.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore import awsrequest

from shepherd_core.adapters.http.bounded_answer import check_values, read
from shepherd_core.adapters.http.timed_headers import TimedHTTPConnection
from shepherd_core.domain.clock import Deadline, SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    import urllib3


def limit(client: Any) -> None:
    """
    Cut off the answers to *client*, of boto3, that have not begun, or not ended, within its time limit for reading.

    Longer ones than ``LONGEST_ANSWER`` are cut off as well. The calls then fail with HTTPClientError. Bodies that
    botocore passes on as streams, as those of S3, are limited by whoever reads them.
    """
    # botocore has no hook for that but one that replaces its sessions, with their proxies and CAs.
    client._endpoint.http_session._pool_classes_by_scheme.update(http=_AwsHTTPPool, https=_AwsHTTPSPool)  # noqa: SLF001


class _AwsHTTPConnection(TimedHTTPConnection, awsrequest.AWSHTTPConnection):  # type: ignore[misc]  # botocore has no types
    def getresponse(self) -> Any:
        answer = super().getresponse()
        answer.stream = partial(_whole, answer, self.timeout)  # what botocore reads unless it passes the body on
        return answer


class _AwsHTTPSConnection(_AwsHTTPConnection, awsrequest.AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _AwsHTTPPool(awsrequest.AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _AwsHTTPConnection


class _AwsHTTPSPool(awsrequest.AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _AwsHTTPSConnection


def _whole(answer: urllib3.BaseHTTPResponse, seconds: float | None) -> Iterator[bytes]:
    try:
        content = read(answer, Deadline(SystemClock(), math.inf if seconds is None else seconds).remaining)
        check_values(content)
    except BaseException:
        answer.close()
        raise
    yield content
