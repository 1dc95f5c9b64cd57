"""Scenarios of the loops for many faults: smaller than those of ``scenarios``, and without crash points."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.clock import SystemClock

from simulator.machines.pool import MachinePool
from tests.chaos.scenarios import loops, records
from tests.chaos.stage.access import Access
from tests.chaos.stage.environment import Environment
from tests.support import defaults
from tests.support.bmdb.fleet import Fleet

FAULTY_AGENT = (
    loops.AGENT.replace(
        "key = os.urandom(32)\n",
        """\
mood = os.path.join(os.path.dirname(os.path.realpath(sys.argv[0])), "mood")
mood = open(mood).read() if os.path.exists(mood) else ""
if mood == "hangs":
    time.sleep(1000)
if mood == "floods":
    for _ in range(64):
        sys.stdout.buffer.write(bytes(65536))
    sys.exit()
if mood == "talks garbage":
    sys.stdout.buffer.write(b"garbage")
    sys.exit()
if mood == "exits":
    sys.exit(1)
if mood == "is confused":
    init = field(1, b"another machine")
key = os.urandom(32)
""",
    ).replace("import os, sys", "import os, sys, time")
    + "#" * 100_000
)
"""An agent that behaves as the file ``mood`` beside it says; long enough for an upload that breaks in the middle."""

T = TypeVar("T")


class SkippingClock(SystemClock):
    """The real time, but ``sleep`` returns at once and moves the clock ahead."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        self._skipped += max(0.0, seconds)


def cold(**changes: Any) -> Access:
    """Return what an invocation has that is the first in its process, but for the *changes*."""
    return Access(limits=TimeLimits(), **changes)


class Tick:
    """The context of an invocation without crash points and without sleeps."""

    def __init__(self) -> None:
        self.clock = SkippingClock()

    def stepped(self, thing: Any) -> Any:
        return thing

    def aside(self, call: Callable[[], T]) -> T:
        return call()


class Recoveries(loops.Recoveries):
    """The Recoverer's scenario with a smaller fleet, since it runs many times."""

    policy = defaults.policy(boot_wait=120)
    at_once = 16

    def arrange(self) -> Environment:
        fleet = self._fleet
        environment = Environment(fleet, SystemClock())
        self._unhealthy = [fleet.unhealthy_machine() for _ in range(2)]
        environment.may_be_rebooted = {environment.machine_at_provider(machine_id) for machine_id in self._unhealthy}
        environment.healthy = [fleet.reporting_machine(60)]
        paused = fleet.unhealthy_machine()
        for machine_id in (*environment.healthy, paused):
            environment.machine_at_provider(machine_id)
        pauses.pause(fleet.connection, owner="somebody", reason="new memory", machine_id=paused)
        return environment


class AgentStarts(loops.AgentStarts):
    """The Initializer's scenario, with no full disk unless a fault fills it."""

    at_once = 16

    def __init__(self, fleet: Fleet, pool: MachinePool, private_key: str, folder: Path) -> None:
        super().__init__(fleet, pool, private_key, folder)
        self._agent.write_text(FAULTY_AGENT)

    def arrange(self) -> Environment:
        environment = super().arrange()
        self._pool.free_disk(self._pool.names()[0])
        return environment

    def _free_disk(self) -> None: ...


class Updates(records.Updates):
    """Machines without recorded provider facts, and one that vanished from the provider."""

    def arrange(self) -> Environment:
        environment = Environment(self._fleet, SystemClock())
        machines = [self._fleet.provided_machine() for _ in range(4)]
        gone, *_ = [environment.machine_at_provider(machine_id) for machine_id in machines]
        self._wanted = {**dict.fromkeys(machines, "Running"), machines[0]: "Missing"}
        self._fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
        environment.api.forget(gone)
        return environment


FaultyScenario = loops.Provisioning | Recoveries | AgentStarts | Updates
