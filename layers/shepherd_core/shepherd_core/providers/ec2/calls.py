"""Calls to EC2, with a time limit and with Shepherd's errors."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar

from shepherd_core.adapters import aws
from shepherd_core.domain.clock import in_background
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.provider import MachineNotFound, ProviderRefused, ProviderUnavailable, ProviderUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.domain.errors.provider import ProviderError

T = TypeVar("T")

_NO_SUCH = {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"}
_NOT_US = {"AuthFailure", "Blocked", "ExpiredToken", "InvalidClientTokenId", "OptInRequired", "SignatureDoesNotMatch"}
_CHANGING = {"IncorrectInstanceState", "IncorrectState"}  # its state has changed since it was read


class Ec2Calls:
    """
    EC2 in the account and the region of the environment. Safe to use from several threads.

    Errors name *what* the call does and AWS's error code, never AWS's message: it may repeat the request, and one of
    the requests holds a private key.
    """

    def __init__(self) -> None:
        self._reading: Any = None
        self._changing: Any = None

    def read(self, what: str, call: Callable[[Any], Any], deadline: Deadline) -> Any:
        """
        Return the result of *call* with a client that tries up to three times.

        Raises:
            MachineNotFound: there is no such instance.
            ProviderUnavailable: no answer in time, throttled, or an internal error of EC2.
            ProviderRefused: any other refusal.
            TimeLimitExceeded: the deadline passed before a request could be sent.
        """

        def reading() -> Any:
            self._reading = self._reading or aws.client("ec2")
            return self._reading

        return in_time(what, lambda: _asked(what, reading, deadline.left, call), deadline)

    def change(self, what: str, call: Callable[[Any], Any], deadline: Deadline, expected: Collection[str] = ()) -> Any:
        """
        Return the result of *call* with a client that tries once, or the code of a refusal if it is one of *expected*.

        Raises:
            SessionExpired: the BMDB session has no time left; nothing was sent.
            ProviderUnavailable: see ``read``; it is unknown whether it was done.
            MachineNotFound, ProviderRefused, TimeLimitExceeded: see ``read``; it was not done.
        """
        return in_time(what, lambda: _asked(what, self._once, deadline.check, call, expected=expected), deadline)

    def interrupt(self, what: str, call: Callable[[Any], Any], permission: Permission) -> Any:
        """
        Return the result of *call*, which interrupts a machine, with a client that tries once.

        Raises:
            NoLongerDue: nothing was sent.
            SessionExpired, ProviderUnavailable, MachineNotFound, ProviderRefused, TimeLimitExceeded: see ``change``.
        """
        return in_time(
            what,
            lambda: _asked(what, self._once, permission.confirm, call, declined=permission.declined),
            permission.deadline,
        )

    def _once(self) -> Any:
        self._changing = self._changing or aws.client("ec2", attempts=1)
        return self._changing


def in_time(what: str, call: Callable[[], T], deadline: Deadline) -> T:
    """
    Return or raise the outcome of *call*, but give up at the deadline.

    Runs it in another thread: boto3 has time limits for a connection and for a part of an answer, not for a call.

    Raises:
        ProviderUnavailable: no outcome by the deadline; the call may still take effect.
        TimeLimitExceeded: the deadline passed before it could begin.
    """
    seconds = deadline.left(threading.TIMEOUT_MAX)
    outcome = in_background(call)
    if not futures.wait([outcome], seconds).done:
        raise ProviderUnavailable(f"could not {what}: no answer in time")
    return outcome.result()


def _asked(
    what: str,
    client: Callable[[], Any],
    fence: Callable[[], object],
    call: Callable[[Any], Any],
    *,
    expected: Collection[str] = (),
    declined: Callable[[], object] = lambda: None,
) -> Any:
    sent = False
    try:
        ec2 = client()
        fence()  # after client(): the first client takes a second to create
        sent = True
        return call(ec2)
    except ShepherdError:
        raise
    except Exception as error:  # noqa: BLE001 - a malformed answer makes boto3 raise anything
        meaning, said = aws.classify(error)
        if sent and aws.declined(error):
            declined()
    if said in expected:
        return said
    # Raised outside the handler, so that the error does not hold the original, which may hold a key (see the class).
    raise _provider_error(meaning, said)(f"EC2 could not {what}: {said}")


def _provider_error(meaning: aws.AwsFault, said: str) -> type[ProviderError]:
    if said in _NO_SUCH:
        return MachineNotFound
    if meaning is aws.AwsFault.DENIED or said in _NOT_US:
        return ProviderUnusable
    if meaning is aws.AwsFault.PASSING or said in _CHANGING:
        return ProviderUnavailable
    return ProviderRefused
