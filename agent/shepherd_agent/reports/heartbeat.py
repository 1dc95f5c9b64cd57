"""The heartbeats after the takeover."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from ..messages import HeartbeatResponse, heartbeat_request
from .endpoint import NotDelivered
from .reporter import HeardBefore, MessageRefused, TooOften, Unauthorized

if TYPE_CHECKING:
    from typing import NoReturn

    from ..hardware.inventory import Inventory
    from ..installation.installer import Installer
    from .interval import Interval
    from .reporter import Reporter

_JITTER = 0.1
_RETRY_SECONDS, _RETRY_SHARE = 10.0, 0.2  # at first: of these, the shorter
_RETRY_GROWTH = 1.5
_RETRY_JITTER = 0.5
_LONGEST_RETRY_SECONDS = 60.0
_SPREAD = 0.1


def pause_after(lost: int, interval: float, chance: random.Random) -> float:
    """
    Return the seconds until the next heartbeat, with jitter; *lost* is how many in a row got no answer.

    A lost one is repeated within 10 seconds, then half as much again after each loss, and never later than after a
    minute, whatever the *interval* is. So a network that loses half of all requests does not make a healthy machine
    look unhealthy. An endpoint that is down gets a request from each machine every 45 seconds on average. The pauses
    are shorter for intervals of less than 50 seconds, and never longer than the interval.
    """
    if lost == 0:
        return interval * chance.uniform(1 - _JITTER, 1 + _JITTER)
    longest = min(_RETRY_SECONDS, interval * _RETRY_SHARE) * _RETRY_GROWTH ** min(lost - 1, 10)
    return min(longest, interval, _LONGEST_RETRY_SECONDS) * chance.uniform(1 - _RETRY_JITTER, 1)


def pause_after_failure(lost: int, interval: float, chance: random.Random) -> float:
    """
    Return the seconds until the next heartbeat after one that was not accepted; *lost* is 0 if the endpoint answered.

    An endpoint that answers with an error is in trouble or out of capacity: the pause is about a minute, or the
    *interval* if that is shorter. It is not longer, because nothing was recorded.
    """
    return pause_after(lost, interval if lost else min(interval, _LONGEST_RETRY_SECONDS), chance)


def first_pause(interval: float, chance: random.Random) -> float:
    """
    Return the seconds until the first heartbeat with a new *interval*.

    It is a random part of the interval, so that machines that are told it together do not report together from then on.
    """
    return interval * chance.uniform(_SPREAD, 1)


class Heartbeats:
    """The heartbeats of one machine, and the answers to them."""

    def __init__(self, reporter: Reporter, inventory: Inventory, installer: Installer, interval: Interval) -> None:
        self.interval = interval
        self._reporter = reporter
        self._inventory = inventory
        self._installer = installer
        self._hardware_waits = False
        self._failed_attempts = 0

    def send(self) -> bool:
        """
        Send one heartbeat, with at most one report, and act on the answer; return whether the interval changed.

        Raises:
            NotDelivered: it was not accepted. A report that the endpoint refuses is
                not repeated soon, so that it cannot block the heartbeats.
        """
        installation = self._installer.report()
        hardware = b"" if installation or self._hardware_waits else self._inventory.report()
        self._hardware_waits = False
        message = heartbeat_request(
            self._reporter.machine_id,
            hardware=hardware,
            installation=installation,
            failed_attempts=self._failed_attempts,
            interval=self.interval.whole_seconds,
        )
        try:
            answer = self._reporter.send("heartbeat", message)
            try:
                response = HeartbeatResponse.decode(answer)
            except ValueError as error:
                raise NotDelivered(f"the answer is not a HeartbeatResponse: {error}", answered=True) from error
        except MessageRefused:
            self._reported(hardware, installation)
            raise
        except NotDelivered as error:
            if isinstance(error, TooOften):
                self._hardware_waits = bool(hardware)  # the next heartbeat goes without it, or none would be accepted
            if isinstance(error, HeardBefore):
                self._failed_attempts = 0
            elif not isinstance(error, Unauthorized):  # which is no loss
                self._failed_attempts += 1
            raise
        self._failed_attempts = 0
        self._reported(hardware, installation)
        if response.installation is not None:
            self._installer.take(response.installation)
        return self.interval.set(response.interval)

    def _reported(self, hardware: bytes, installation: bytes) -> None:
        if installation:
            self._installer.reported()
        if hardware:
            self._inventory.reported()


def send_heartbeats(heartbeats: Heartbeats) -> NoReturn:
    """
    Send heartbeats until the process is killed; failures do not end it.

    The first one waits for a part of a minute, however long the interval is: the
    takeover must be recorded first, and Shepherd waits for it.
    """
    chance = random.Random()  # noqa: S311 - spreads load
    interval = heartbeats.interval
    lost = 0
    pause = min(interval.seconds, _LONGEST_RETRY_SECONDS) * chance.uniform(0.2, 1)
    while True:
        time.sleep(pause)
        try:
            changed = heartbeats.send()
        except NotDelivered as error:
            # Nothing to report to: Shepherd notices the missing heartbeat.
            lost = 0 if error.answered else lost + 1
            pause = pause_after_failure(lost, interval.seconds, chance)
        else:
            lost = 0
            pause = first_pause(interval.seconds, chance) if changed else pause_after(0, interval.seconds, chance)
