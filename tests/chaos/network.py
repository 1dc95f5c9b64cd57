"""
A loop behind a network that breaks at each exchange with the database, the provider or a machine.

The first tick goes through a ``Proxy`` that breaks one connection, or is slow.
Then the network works again, the schedules continue, and the environment must
converge as after a kill. A function that guessed the outcome of a broken exchange
would be found by that.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal
from urllib.parse import urlsplit

from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.telemetry import Metric

from tests.chaos.crash_points import Context
from tests.chaos.explore import Explored, converge
from tests.chaos.invariants import violations
from tests.chaos.scenarios.loops import AgentStarts, Provisioning, Updates
from tests.chaos.scenarios.recoveries import Recoveries
from tests.chaos.stage.environment import Access, Environment
from tests.support.bmdb.breaking_connection import HOW, WHERE, Break, Proxy
from tests.support.bmdb.capacity import provided

Link = Literal["database", "provider", "ssh"]
FaultyScenario = Provisioning | Recoveries | AgentStarts | Updates

_FAR = "127.43.0.1"
"""The address of the proxy to a machine's SSH."""


class FewRecoveries(Recoveries):
    """The Recoverer's scenario with a smaller fleet, since it runs many times."""

    at_once = 16

    def arrange(self) -> Environment:
        environment = Environment(self._fleet)
        self._unhealthy = environment.unhealthy(2)
        environment.add_healthy(1)
        environment.add_paused()
        return environment


class SkippingClock(SystemClock):
    """The real time, but ``sleep`` returns at once and moves the clock ahead."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        self._skipped += max(0.0, seconds)


def explore(scenario: FaultyScenario, link: Link, *, sample: Random | None, stalls: bool) -> Explored:
    """
    Break *link* at each place of every exchange, and in all ways at every COMMIT, until that breaks a promise.

    With *sample*, break it once at each place and once at a COMMIT, as it chooses.
    *stalls*: also keep connections open without an answer.
    """
    explored = Explored()
    environment = scenario.arrange()
    with _between(scenario, link, environment, patient=True) as proxy:
        scenario.tick(environment, Context(SkippingClock()))
        names = list(proxy.names)
        connections = proxy.connections
    kinds = HOW if stalls else HOW[:-1]
    commits = [number for number, name in enumerate(names, 1) if name == "COMMIT"]
    groups = [_late(names), [Break(*each) for each in itertools.product(commits, WHERE[1:], kinds)]]
    ways = itertools.cycle(sample.sample(kinds, len(kinds)) if sample else kinds)
    for where in WHERE:
        numbers = range(1, (connections if where == "connect" else len(names)) + 1)
        how = next(ways)
        groups.append([Break(number, where, how if sample else next(ways)) for number in numbers])
    if sample:
        groups = [sample.sample(group, len(group)) for group in groups]
    else:
        groups = [[place] for place in dict.fromkeys(itertools.chain(*groups))]
    for group in groups:
        if explored.broken:
            break
        for place in group:  # an invocation may have fewer exchanges than the first one
            if _broken(scenario, link, explored, place):
                break
    return explored


def _broken(scenario: FaultyScenario, link: Link, explored: Explored, place: Break) -> bool:
    """Break *link* in a new environment at *place*, if it comes to that, then let the schedules continue."""
    where = f"{scenario.name}, {link}, {place}"
    environment = scenario.arrange()
    with _between(scenario, link, environment) as proxy:
        proxy.arm(place)
        explored.broken += [f"{where}: {wrong}" for wrong in _tick(scenario, environment, proxy)]
        if not proxy.broke:
            return False
        explored.breaks.append(place)
        # The network works again, but stalled connections stay stalled: the server does not learn of their end.
        scenario.access = Access(limits=TimeLimits())
        wrong = violations(environment) + converge(scenario, environment, explored)
        explored.broken += [f"{where}: {each}" for each in wrong]
    return True


def trickled(scenario: FaultyScenario, link: Link) -> list[str]:
    """Return the differences between a tick over a fast link and one that forwards byte by byte."""
    told: list[dict[Metric, float]] = []
    for trickling in (False, True):
        environment = scenario.arrange()
        with _between(scenario, link, environment, patient=True) as proxy:
            proxy.trickling = trickling
            counts = scenario.tick(environment, Context(SkippingClock()))
            told.append({metric: count for metric, count in counts.items() if metric is not Metric.OLDEST_DUE_AGE})
            environment.fleet.disconnect()
            if broken := violations(environment):
                return broken
    return [] if told[0] == told[1] else [f"{told[1]} instead of {told[0]}"]


def _tick(scenario: FaultyScenario, environment: Environment, proxy: Proxy) -> list[str]:
    """Carry out one invocation; return its violations: errors of other libraries, and guessed counts."""
    try:
        counts = scenario.tick(environment, Context(SkippingClock()))
        proxy.let_go()
        return _guessed(environment, counts)
    except ShepherdError:
        return []
    except Exception as error:  # noqa: BLE001 - any other error is a violation
        return [f"the invocation ended with {error!r}"]
    finally:
        proxy.let_go()
        environment.fleet.disconnect()


def _guessed(environment: Environment, counts: Mapping[Metric, float]) -> list[str]:
    """Return the differences between the counts of an environment's first invocation and the database."""
    ended = dict(environment.fleet.sql("SELECT event, count(*) FROM work_history GROUP BY event"))
    done = {
        Metric.FINISHED: ended.get("Finished", 0),
        Metric.FAILED: ended.get("Failed", 0),
        Metric.CREATED: len([each for each in environment.api.snapshot() if each.id in provided(environment.fleet)]),
        Metric.UPDATED: environment.fleet.sql(
            "SELECT count(*) FROM machine_provided WHERE provider_status IS NOT NULL"
        )[0][0],
    }
    return [
        f"{metric} is counted as {counts[metric]}, in the BMDB it is {done[metric]}"
        for metric in done
        if metric in counts and counts[metric] != done[metric]
    ]


def _late(names: list[str]) -> list[Break]:
    """Return the commits that may come late, those of transactions and of single statements."""
    found: list[Break] = []
    in_transaction = False
    for number, name in enumerate(names, 1):
        if name == "COMMIT" or (name == "statement" and not in_transaction):
            found.append(Break(number, "commit", "cut"))
        in_transaction = name == "BEGIN" or (in_transaction and name not in ("COMMIT", "ROLLBACK"))
    return found


@contextmanager
def _between(
    scenario: FaultyScenario, link: Link, environment: Environment, *, patient: bool = False
) -> Iterator[Proxy]:
    """Put a proxy into *link*, and close everything at the end. Unless *patient*, timeouts are short."""
    access = scenario.access = Access(limits=TimeLimits())
    named: dict[str, Any] = {}
    bmdb = environment.fleet.settings
    target: Path | tuple[str, int] = Path(bmdb.bmdb_host) / f".s.PGSQL.{bmdb.bmdb_port}"
    if link == "provider":
        url = urlsplit(environment.api.url)
        target = str(url.hostname), int(url.port or 0)
    elif link == "ssh":
        assert environment.pool is not None
        name, port = environment.pool.names()[-1], environment.pool.port
        target, named = (environment.pool.address(name), port), {"address": _FAR, "port": port}
        access.addresses[name] = _FAR
    with Proxy(target, speaks_sql=link == "database", **named) as proxy:
        if link == "database":
            access.bmdb = bmdb.model_copy(update={"bmdb_host": "127.0.0.1", "bmdb_port": proxy.port})
            seconds = 30.0 if patient else 0.5
            access.limits = TimeLimits(connect=seconds, statement=seconds)
        elif not patient:
            access.machine_seconds = 2.0  # an answer may never come
        if link == "provider":
            access.api_url = f"http://127.0.0.1:{proxy.port}{urlsplit(environment.api.url).path}"
        yield proxy
    environment.close()
