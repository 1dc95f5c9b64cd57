"""The heartbeats after the takeover."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from .duration import seconds_from
from .endpoint import NotDelivered
from .messages import heartbeat_request, installation_request
from .reporter import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from .installation import Installer
    from .inventory import Inventory
    from .reporter import Reporter

INTERVAL_VARIABLE = "SHEPHERD_AGENT_HEARTBEAT_SECONDS"
_INTERVAL = 60.0
_JITTER = 0.1
_GROWTH = 1.5
_LONGEST = 5  # intervals: well below the default heartbeat timeout of 10 minutes


def interval(environment: Mapping[str, str]) -> float:
    """
    Return the seconds between two heartbeats.

    Raises:
        Refusal: see ``seconds_from``.
    """
    return seconds_from(environment, INTERVAL_VARIABLE, _INTERVAL)


def pause_after(pause: float, interval: float, *, delivered: bool) -> float:
    """Return the seconds until the next heartbeat: *interval*, or after a failure more than the last *pause*."""
    return interval if delivered else min(pause * _GROWTH, interval * _LONGEST)


class Heartbeats:
    """The heartbeats of one machine, and the answers to them."""

    def __init__(self, reporter: Reporter, machine_id: str, inventory: Inventory, installer: Installer) -> None:
        self._reporter = reporter
        self._machine_id = machine_id
        self._inventory = inventory
        self._installer = installer

    def send(self) -> None:
        """
        Send one heartbeat, with at most one report, and act on the answer.

        Raises:
            NotDelivered: it was not accepted. A report that the endpoint refuses is
                not repeated soon, so that it cannot block the heartbeats.
        """
        installation = self._installer.report()
        hardware = b"" if installation else self._inventory.report()
        message = heartbeat_request(self._machine_id, hardware=hardware, installation=installation)
        try:
            answer = self._reporter.send("heartbeat", message)
            try:
                request = installation_request(answer)
            except ValueError as error:
                raise NotDelivered(f"the answer is not a HeartbeatResponse: {error}") from error
        except Refused:
            self._reported(hardware, installation)
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
    pause = interval
    time.sleep(interval * random.uniform(0.2, 1))  # noqa: S311 - spreads load
    while True:
        try:
            heartbeats.send()
        except NotDelivered:
            # Nothing to report to: Shepherd notices the missing heartbeat.
            pause = pause_after(pause, interval, delivered=False)
        else:
            pause = pause_after(pause, interval, delivered=True)
        time.sleep(pause * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - spreads load
