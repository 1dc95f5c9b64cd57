"""Calls to EC2: in time, and with our errors."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from shepherd_core import aws
from shepherd_core.errors import MachineNotFound, ProviderRefused, ProviderUnavailable, ShepherdError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shepherd_core.clock import Deadline
    from shepherd_core.errors import ProviderError

T = TypeVar("T")

_NO_SUCH = {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"}
_CHANGING = {"IncorrectInstanceState", "IncorrectState"}  # it was in another state when we looked


class Ec2Calls:
    """
    EC2 in the account and the region of the environment. Safe to use from several threads.

    *what* a call does is named in its errors, with AWS's code and never with its words: they may repeat the request,
    and one of the requests holds a private key.
    """

    def __init__(self) -> None:
        self._reading: Any = None
        self._changing: Any = None

    def read(self, what: str, call: Callable[[Any], Any], deadline: Deadline) -> Any:
        """
        Return what *call* returns for a client that tries up to three times.

        Raises:
            MachineNotFound: there is no such instance.
            ProviderUnavailable: no answer in time, throttled, or an error of EC2's own.
            ProviderRefused: any other refusal.
            TimeLimitExceeded: the deadline passed before a request could be sent.
        """

        def reading() -> Any:
            self._reading = self._reading or aws.client("ec2")
            return self._reading

        return in_time(what, lambda: _asked(what, reading, deadline.left, call), deadline)

    def change(self, what: str, call: Callable[[Any], Any], deadline: Deadline, told: Collection[str] = ()) -> Any:
        """
        Return what *call* returns for a client that tries once, or the code of a refusal if it is one of *told*.

        Raises:
            SessionExpired: the BMDB session has no time left; nothing was sent.
            ProviderUnavailable: as ``read``, and it is unknown whether it was done.
            MachineNotFound, ProviderRefused, TimeLimitExceeded: as ``read``, and it was not done.
        """

        def changing() -> Any:
            self._changing = self._changing or aws.client("ec2", attempts=1)
            return self._changing

        return in_time(what, lambda: _asked(what, changing, deadline.check, call, told), deadline)


def in_time(what: str, call: Callable[[], T], deadline: Deadline) -> T:
    """
    Return what *call* returns, or raise what it raises, but give it up when the time is over.

    In a thread of its own: boto3 knows time limits for a connection and for a piece of an answer, none for a call.

    Raises:
        ProviderUnavailable: it was given up.
        TimeLimitExceeded: the deadline passed before it could begin.
    """
    seconds = deadline.left(threading.TIMEOUT_MAX)
    outcome: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def run() -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            failure = error
            outcome.put(lambda: _raised(failure))
        else:
            outcome.put(lambda: result)

    threading.Thread(target=run, name="ec2", daemon=True).start()
    try:
        found = outcome.get(timeout=seconds)
    except Empty:
        raise ProviderUnavailable(f"could not {what}: no answer in time") from None
    return found()


def _raised(error: Exception) -> Any:
    raise error


def _asked(
    what: str,
    client: Callable[[], Any],
    fence: Callable[[], object],
    call: Callable[[Any], Any],
    told: Collection[str] = (),
) -> Any:
    try:
        ec2 = client()
        fence()  # the first client takes a second to make
        return call(ec2)
    except ShepherdError:
        raise
    except Exception as error:  # noqa: BLE001 - boto3 lets through whatever a broken answer provoked
        meaning, said = aws.fault(error)
    if said in told:
        return said
    # Raised outside of the handler, so that the original goes no further: see the class.
    raise _ours(meaning, said)(f"EC2 could not {what}: {said}")


def _ours(meaning: aws.Fault, said: str) -> type[ProviderError]:
    if said in _NO_SUCH:
        return MachineNotFound
    if meaning is aws.Fault.PASSING or said in _CHANGING:
        return ProviderUnavailable
    return ProviderRefused
