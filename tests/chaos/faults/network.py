"""
A loop behind a network that breaks, at each exchange with each of its neighbours, and what becomes of the world.

The first tick goes through a ``Proxy`` that breaks one connection, or is slow.
Then the network is well, the schedules go on, and the world has to converge as
after a death: whatever the function took from the break, a guess about what
had happened would show.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from shepherd_core.domain.errors import ShepherdError
from shepherd_core.telemetry import Metric

from tests.chaos.explore import Explored, converge
from tests.chaos.faults.fault import AgentStarts, HurriedClock, Way
from tests.chaos.invariants import violations
from tests.chaos.stage.proxy import HOW, WHERE, Break, Proxy
from tests.support.bmdb.capacity import provided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from shepherd_core.domain.clock import Clock

    from tests.chaos.faults.fault import Bendable
    from tests.chaos.stage.environment import World
    from tests.chaos.stage.proxy import How

Link = Literal["database", "provider", "ssh"]

DATABASE_SECONDS = 0.5
"""So long a function waits for a connection to the database, and so long one of its statements may take."""
PATIENT_SECONDS = 30.0
MACHINE_SECONDS = 2.0
"""So long work on a machine may take where somebody may be waiting in vain."""
DELAY_SECONDS = 0.003
LATE_PER_STRIDE = 4
"""Commits are few: so much denser they are sampled."""
_FAR = "127.43.0.1"
"""Where a machine seems to be whose SSH goes through the proxy."""


@dataclass
class Tick:
    """What an invocation runs in: nothing of it is caught, and it waits for nobody."""

    clock: Clock = field(default_factory=HurriedClock)


@dataclass
class Broken(Explored):
    """What was explored of a loop's link."""

    breaks: list[Break] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """The exchanges of an invocation that nobody disturbs."""
    outcomes: set[str] = field(default_factory=set)
    """How invocations ended: by the name of an error, or "counts"."""


def explore(
    scenario: Bendable,
    link: Link,
    *,
    stride: int = 1,
    seed: int = 0,
    stalls: bool = True,
    commits: bool = True,
    told: Callable[[str], None] = lambda _: None,
) -> Broken:
    """
    Break *link* at every *stride*-th place, and return what came of it.

    At which of them first, *seed* says. *stalls*: also so that no answer comes
    and the connection stays. *commits*: at every COMMIT in each way, or of a
    sample at the first.
    """
    explored = Broken()
    world = scenario.arrange()
    with _between(scenario, link, world, patient=True) as proxy:
        scenario.tick(world, Tick())
        explored.names = list(proxy.names)
        connections = proxy.connections
    kinds = HOW if stalls else HOW[:-1]
    places = [*_breaks(explored.names, connections, stride, seed, kinds), *_late(explored.names, stride, seed)]
    places += _commits(explored.names, stride, kinds) if commits else []
    for place in dict.fromkeys(places):
        where = f"{scenario.name}, {link}, {place}"
        told(where)
        world = scenario.arrange()
        with _between(scenario, link, world) as proxy:
            proxy.arm(place)
            explored.broken += [f"{where}: {wrong}" for wrong in _tick(scenario, world, explored, proxy)]
            if not proxy.struck:
                continue
            explored.breaks.append(place)
            # From now on all is well, but what was stalled stays so: the other side never hears that it is over.
            scenario.way = Way()
            try:
                wrong = violations(world) + converge(scenario, world, explored)
            except ShepherdError as error:
                wrong = [f"although all is well, an invocation ended with {error!r}"]
            explored.broken += [f"{where}: {each}" for each in wrong]
    return explored


def slowly(scenario: Bendable, link: Link, *, trickling: bool) -> list[str]:
    """Return what is different after a tick over a link on which everything takes a while, or comes byte by byte."""
    told: list[dict[Metric, float]] = []
    for slow in (False, True):
        world = scenario.arrange()
        with _between(scenario, link, world, patient=True) as proxy:
            proxy.trickling, proxy.delay_seconds = slow and trickling, DELAY_SECONDS * (slow and not trickling)
            counts = scenario.tick(world, Tick())
            told.append({metric: count for metric, count in counts.items() if metric is not Metric.OLDEST_DUE_AGE})
            world.fleet.disconnect()
            if broken := violations(world):
                return broken
    return [] if told[0] == told[1] else [f"{told[1]} instead of {told[0]}"]


def _tick(scenario: Bendable, world: World, explored: Broken, proxy: Proxy) -> list[str]:
    """Carry out one invocation; return what it must not end with: errors not ours, counts that are a guess."""
    try:
        counts = scenario.tick(world, Tick())
    except ShepherdError as error:
        explored.outcomes.add(type(error).__name__)
    except Exception as error:  # noqa: BLE001 - it is what is looked for
        return [f"the invocation ended with {error!r}"]
    else:
        explored.outcomes.add("counts")
        proxy.let_go()
        return _guessed(world, counts)
    finally:
        proxy.let_go()
        world.fleet.disconnect()
    return []


def _guessed(world: World, counts: Mapping[Metric, float]) -> list[str]:
    """Return what the first invocation in a world says that it did, and did not do, or the other way round."""
    ended = dict(world.fleet.sql("SELECT event, count(*) FROM work_history GROUP BY event"))
    done = {
        Metric.FINISHED: ended.get("Finished", 0),
        Metric.FAILED: ended.get("Failed", 0),
        Metric.CREATED: len([each for each in world.api.devices() if each.id in provided(world.fleet)]),
        Metric.UPDATED: world.fleet.sql("SELECT count(*) FROM machine_provided WHERE provider_status IS NOT NULL")[0][
            0
        ],
    }
    return [
        f"it says that it has {metric} {counts[metric]}, the BMDB says {done[metric]}"
        for metric in done
        if metric in counts and counts[metric] != done[metric]
    ]


def _breaks(names: list[str], connections: int, stride: int, seed: int, kinds: Sequence[How]) -> Iterator[Break]:
    """Return where and how to break: every *stride*-th place of each kind, in one way, all ways in turn."""
    turns = itertools.count()
    for where in WHERE:
        numbers = range(1, (connections if where == "connect" else len(names)) + 1)
        for number in numbers[seed % min(stride, len(numbers)) :: stride]:
            yield Break(number, where, kinds[next(turns) % len(kinds)])


def _commits(names: list[str], stride: int, kinds: Sequence[How]) -> Iterator[Break]:
    """Return all ways of breaking at a COMMIT; of a sample, at the first."""
    numbers = [number for number, name in enumerate(names, 1) if name == "COMMIT"]
    for number in numbers if stride == 1 else numbers[:1]:
        for where in WHERE:
            if where != "connect":
                yield from (Break(number, where, how) for how in kinds)


def _late(names: list[str], stride: int, seed: int) -> list[Break]:
    """Return the commits that may come late: those of transactions, and of statements that stand alone."""
    found: list[Break] = []
    in_transaction = False
    for number, name in enumerate(names, 1):
        if name == "COMMIT" or (name == "statement" and not in_transaction):
            found.append(Break(number, "commit", "cut"))
        in_transaction = name == "BEGIN" or (in_transaction and name not in ("COMMIT", "ROLLBACK"))
    every = max(1, stride // LATE_PER_STRIDE)
    return found[seed % min(every, max(1, len(found))) :: every]


@contextmanager
def _between(scenario: Bendable, link: Link, world: World, *, patient: bool = False) -> Iterator[Proxy]:
    """Put a proxy into *link*, and in the end close all. Unless *patient*, nobody waits long for an answer."""
    way = scenario.way = Way()
    named: dict[str, Any] = {}
    bmdb = world.fleet.settings
    target: Path | tuple[str, int] = Path(bmdb.bmdb_host) / f".s.PGSQL.{bmdb.bmdb_port}"
    if link == "provider":
        url = urlsplit(world.api.url)
        target = str(url.hostname), int(url.port or 0)
    elif isinstance(scenario, AgentStarts) and world.pool is not None:
        port = world.pool.port
        if link == "ssh":
            name = world.pool.names()[0]
            target, named = (world.pool.address(name), port), {"address": _FAR, "port": port}
            way.addresses[name] = _FAR
    with Proxy(target, speaks_sql=link == "database", **named) as proxy:
        if link == "database":
            way.bmdb = bmdb.model_copy(
                update={
                    "bmdb_host": "127.0.0.1",
                    "bmdb_port": proxy.port,
                    "bmdb_connect_timeout_seconds": PATIENT_SECONDS if patient else DATABASE_SECONDS,
                    "bmdb_statement_timeout_seconds": PATIENT_SECONDS if patient else DATABASE_SECONDS,
                }
            )
        elif not patient:
            way.machine_seconds = MACHINE_SECONDS
        if link == "provider":
            way.api_url = f"http://127.0.0.1:{proxy.port}{urlsplit(world.api.url).path}"
        yield proxy
    world.close()
