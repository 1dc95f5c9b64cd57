"""
The answers to CloudFormation: where they are sent, what they may hold, and how they are delivered.

CloudFormation waits up to an hour for an answer at the URL in its request. The URL
is a secret, since it allows answering: it appears in no message and no log.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.domain.errors import AnswerUndelivered, ConfigError, EventInvalid, ShepherdError
from shepherd_core.domain.events import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.domain.clock import Clock

_ATTEMPTS = 3
_FIRST_PAUSE_SECONDS = 1.0
_ANSWER_LIMITS = (3, 5)  # seconds to connect, and between two bytes
_REASON_BYTES = 3_000  # CloudFormation takes 4,096 bytes in all
_OK = 200
_DIRECTION = "(north|south|east|west|central){1,2}"
_SUFFIX = r"(amazonaws\.(com(\.cn)?|eu)|c2s\.ic\.gov|sc2s\.sgov\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)"
ANSWERED = re.compile(
    rf"https://cloudformation-custom-resource-response-([a-z]{{2}}(gov|iso[bef]?)?|eusc[a-z]{{2}}){_DIRECTION}[0-9]{{1,2}}"
    rf"\.s3([.-](dualstack\.)?([a-z]{{2}}(-gov|-iso[bef]?)?|eusc-[a-z]{{2}})-{_DIRECTION}-[0-9]{{1,2}})?\.{_SUFFIX}/[!-~]*"
    r"|http://127\.0\.0\.1(:[0-9]+)?(/[!-~]*)?"
)
"""
Where answers go: to CloudFormation's buckets, such as …-euwest1.s3.eu-west-1.amazonaws.com, or to a test here.

A bucket that merely begins like that may be anybody's.
"""


def answer_url(event: Mapping[str, object]) -> str:
    """
    Return where to answer *event*.

    Raises:
        EventInvalid: the answer would go to somebody else.
    """
    url = event["ResponseURL"]
    if not (isinstance(url, str) and ANSWERED.fullmatch(url)):
        host = shown(str(url).partition("://")[2].partition("/")[0])
        raise EventInvalid(f"ResponseURL is at {host}; it must be at one of CloudFormation's own hosts")
    return url


def failure_reason(error: Exception) -> str:
    """Return the reason for CloudFormation, with as many faults as fit into it."""
    if isinstance(error, ConfigError):
        for count in range(len(error.faults), 0, -1):
            more = len(error.faults) - count
            rest = [f"and {more} more, in the log of the Migrator"] if more else []
            text = f"{type(error).__name__}: {ConfigError([*error.faults[:count], *rest])}"
            if _fits(text):
                return text
    # The text of an error that is not ours may hold anything.
    text = f": {error}" if isinstance(error, ShepherdError) else ": unexpected; see the log"
    reason = f"{type(error).__name__}{text}"
    while not _fits(reason):
        reason = f"{reason[: len(reason) * 9 // 10 - 1]}…"
    return reason


def _fits(reason: str) -> bool:
    return len(json.dumps(reason)) <= _REASON_BYTES


def deliver(url: str, answer: Mapping[str, object], clock: Clock) -> None:
    """
    Send *answer* to *url*; try again if it is not accepted.

    Raises:
        AnswerUndelivered: it was never accepted.
    """
    import requests  # noqa: PLC0415 - only for CloudFormation

    body, outcome = json.dumps(answer).encode(), ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep(_FIRST_PAUSE_SECONDS * attempt)
        try:
            # The URL is signed for an empty content type.
            answered = requests.put(
                url, body, headers={"Content-Type": ""}, timeout=_ANSWER_LIMITS, allow_redirects=False
            )
        except requests.RequestException as error:
            outcome = type(error).__name__  # its text holds the URL
        else:
            if answered.status_code == _OK:
                return
            outcome = f"status {answered.status_code}"
        telemetry.warning("CloudFormation did not accept the answer", outcome=outcome)
    raise AnswerUndelivered(f"CloudFormation did not accept the answer in {_ATTEMPTS} attempts: {outcome}")
