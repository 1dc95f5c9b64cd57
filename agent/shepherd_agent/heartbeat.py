"""The heartbeats after the takeover."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from .duration import seconds_from
from .endpoint import NotDelivered
from .messages import heartbeat_request, installation_request
from .reporter import Refused, TooOften

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from .installation import Installer
    from .inventory import Inventory
    from .reporter import Reporter

INTERVAL_VARIABLE = "SHEPHERD_AGENT_HEARTBEAT_SECONDS"
_INTERVAL = 60.0
_JITTER = 0.1
_RETRY = 0.2  # intervals
_RETRY_GROWTH = 1.5
_RETRY_JITTER = 0.5


def interval(environment: Mapping[str, str]) -> float:
    """
    Return the seconds between two heartbeats.

    Raises:
        Refusal: see ``seconds_from``.
    """
    return seconds_from(environment, INTERVAL_VARIABLE, _INTERVAL)


def pause_after(lost: int, interval: float, chance: random.Random) -> float:
    """
    Return the seconds until the next heartbeat, with jitter; *lost* is how many in a row got no answer.

    A lost one is repeated within a fifth of the *interval*, then half as much again after each loss, and never later
    than after the interval. So a network that loses half of all requests does not make a healthy machine look
    unhealthy. An endpoint that is down for long gets a third more requests than one that answers, and three times as
    many at first.
    """
    if lost == 0:
        return interval * chance.uniform(1 - _JITTER, 1 + _JITTER)
    longest = min(interval, interval * _RETRY * _RETRY_GROWTH ** min(lost - 1, 10))
    return longest * chance.uniform(1 - _RETRY_JITTER, 1)


class Heartbeats:
    """The heartbeats of one machine, and the answers to them."""

    def __init__(self, reporter: Reporter, inventory: Inventory, installer: Installer) -> None:
        self._reporter = reporter
        self._inventory = inventory
        self._installer = installer
        self._hardware_waits = False

    def send(self) -> None:
        """
        Send one heartbeat, with at most one report, and act on the answer.

        Raises:
            NotDelivered: it was not accepted. A report that the endpoint refuses is
                not repeated soon, so that it cannot block the heartbeats.
        """
        installation = self._installer.report()
        hardware = b"" if installation or self._hardware_waits else self._inventory.report()
        self._hardware_waits = False
        message = heartbeat_request(self._reporter.machine_id, hardware=hardware, installation=installation)
        try:
            answer = self._reporter.send("heartbeat", message)
            try:
                request = installation_request(answer)
            except ValueError as error:
                raise NotDelivered(f"the answer is not a HeartbeatResponse: {error}", answered=True) from error
        except Refused:
            self._reported(hardware, installation)
            raise
        except TooOften:
            self._hardware_waits = bool(hardware)  # the next heartbeat goes without it, or none would be accepted
            raise
        self._reported(hardware, installation)
        if request is not None:
            self._installer.take(request)

    def _reported(self, hardware: bytes, installation: bytes) -> None:
        if installation:
            self._installer.reported()
        if hardware:
            self._inventory.reported()


def send_heartbeats(heartbeats: Heartbeats, interval: float) -> NoReturn:
    """
    Send a heartbeat every *interval* seconds until the process is killed; failures do not end it.

    The first one waits for a random part of the interval, so that machines that
    are taken over together do not report together, and the takeover is recorded
    first.
    """
    chance = random.Random()  # noqa: S311 - spreads load
    lost = 0
    time.sleep(interval * chance.uniform(0.2, 1))
    while True:
        try:
            heartbeats.send()
        except NotDelivered as error:
            # Nothing to report to: Shepherd notices the missing heartbeat. An endpoint that answers is there, and in
            # trouble or out of capacity: it is not asked sooner.
            lost = 0 if error.answered else lost + 1
        else:
            lost = 0
        time.sleep(pause_after(lost, interval, chance))
