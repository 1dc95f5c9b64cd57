"""Every combination of the facts that decide the state of a machine, with the state; and the transitions drawn."""

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from shepherd_core.bmdb.wire import server
from shepherd_core.domain.machine import Process
from shepherd_core.domain.states import State

from tests.integration.bmdb.model import Machine, Model
from tests.support import defaults
from tests.support.bmdb.fleet import PROVIDER, Fleet

UNWATCHED = "equinix"
"""A provider without a policy."""
NOW = 10_000


class Combination(NamedTuple):
    """Facts about a machine; the times are seconds ago."""

    provider: str = PROVIDER
    provided: bool = True
    gone: State | None = None
    quarantined: bool = False
    installation: tuple[int | None, int | None, str] = (None, None, "")
    """The generations requested and reported, and the result."""
    started: int | None = None
    heard: int | None = None
    interval: int = 0
    failed: bool = False
    """For good, as the provider says."""

    @property
    def installed(self) -> bool:
        requested, reported, result = self.installation
        return requested == reported and result == "Success"

    def model(self) -> Model:
        heard = self.heard is not None and (self.started is None or self.heard <= self.started)
        machine = Machine(
            back_by=NOW if heard else NOW + 1,  # what deletes an agent and leaves its heartbeat gives a grace
            started_at=None if self.started is None else NOW - self.started,
            heartbeat_at=NOW - (self.heard or 0) if heard else None,
            interval=self.interval,
            quarantined=self.quarantined,
            done=self.installed or (self.failed and self.started is None),
            watched=self.provider != UNWATCHED,
        )
        return Model(NOW, [machine], timeouts=defaults.HEALTH)

    def state(self) -> State:
        model = self.model()
        if not self.provided:
            return self.gone or State.CREATING
        if self.quarantined:
            return State.QUARANTINED
        if model.machines[0].done:
            return State.INSTALLED if self.installed else State.FAILED
        if self.started is None:
            return State.NEEDS_AGENT
        if model.obstacle(0, Process.RECOVERY) is None:
            return State.UNHEALTHY
        return State.RUNNING if model.machines[0].reported else State.STARTING

    def rows(self, machine_id: UUID, now: datetime) -> dict[str, str | None]:
        """Return the values of its row in each table; None: it has no such row."""
        requested, reported, result = self.installation
        started, heard = _ago(now, self.started), _ago(now, self.heard)
        status = "'ProvisioningFailedPermanent'" if self.failed else "NULL"
        found = {
            "machines": "",
            "machine_provided": f", '{self.provider}', '{machine_id}', NULL, NULL, NULL, {status}"
            if self.provided
            else None,
            "machine_creation_intent": None if self.provided or self.gone else f", '{self.provider}'",
            "machine_tombstone": self.gone and f", '{self.gone.title()}', '?', '?', '?', '?'",
            "machine_quarantine": ", now(), '?', 'steps-used-up'" if self.quarantined else None,
            "machine_os_installation_request": requested and f", {requested}, ''",
            "machine_os_installation_report": reported and f", {reported}, '{result}', ''",
            "machine_agent_started": started and f", '{started}', decode(repeat('5e', 32), 'hex')",
            "machine_agent_heartbeat": heard and f", '{heard}', 0, '{heard}', {self.interval}",
            "machine_grace": ", now(), now()" if heard and not started else None,
        }
        return {table: None if values is None else f"('{machine_id}'{values})" for table, values in found.items()}


COMBINATIONS = [
    Combination(*facts)
    for facts in product(
        (PROVIDER, UNWATCHED),
        (True, False),
        (None, State.FORGOTTEN, State.RELEASED),
        (False, True),
        ((None, None, ""), (None, 2, "Success"), (2, None, ""), (2, 2, "Error"), (2, 1, "Success"), (2, 2, "Success")),
        (None, 10, 1_000, 5_000),  # within both timeouts, within one, within none
        (None, 5, 800, 4_000),  # within the timeout, within that of a long interval, within none
        (0, 1_000),
    )
]
COMBINATIONS += [each._replace(failed=True) for each in COMBINATIONS if each.provided and each.gone is None]


def drawn() -> set[tuple[State | None, State | None]]:
    """Return the transitions that ARCHITECTURE.md draws; None: the BMDB has no such machine."""
    page = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()
    picture = page.partition("<!-- states: begin -->")[2].partition("<!-- states: end -->")[0]
    arrows = re.findall(r"^ *(\S+) --> ([^\s:]+): \S", picture, re.MULTILINE)
    assert len(arrows) == len(set(arrows)) == picture.count("-->")
    none_or_state = {"[*]": None, **{str(state): state for state in State}}
    return {(none_or_state[before], none_or_state[after]) for before, after in arrows}


def plant(fleet: Fleet, combinations: Iterable[Combination]) -> dict[UUID, State]:
    fleet.watch(PROVIDER)
    now = server.now(fleet.connection)
    planted = {uuid4(): each for each in combinations}
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for machine_id, each in planted.items():
        for table, row in each.rows(machine_id, now).items():
            rows[table] += [] if row is None else [row]
    for table, values in rows.items():
        if values:
            fleet.sql(f"INSERT INTO {table} VALUES {', '.join(values)}")
    return {machine_id: each.state() for machine_id, each in planted.items()}


def _ago(now: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else now - timedelta(seconds=seconds)
