from io import StringIO
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from rich.console import Console
from rich.live import Live

from shepherdctl.output.live_view import LiveView, finish
from simulator.environment.environment import Environment
from simulator.environment.status import MachineStatus
from simulator.lambda_.service import Invocation
from tests.conftest import ManualClock

MACHINES = 30
LIMITED = Invocation("recoverer", 1, {"recovery_limited": 1})
AS_USUAL = Invocation("recoverer", 1, {"recovery_limited": 0, "finished": 3, "found_alive": 1})


@pytest.fixture
def environment() -> Environment:
    looked_at = SimpleNamespace(
        elapsed=1.0,
        minutes=1.0,
        faulted={},
        settings=SimpleNamespace(machines=MACHINES),
        machine_source=SimpleNamespace(power_note="", creation_note="(not contacted before it has booted)"),
        sessions=lambda: [
            SimpleNamespace(component_name="provisioner/equinix", machines=0, machine_ids=[]),
            SimpleNamespace(component_name="recoverer/equinix", machines=2, machine_ids=[UUID(int=29)]),
        ],
        pool=SimpleNamespace(reboots=lambda _: 0),
    )
    return cast("Environment", looked_at)


def statuses(*down: int, worked_on: int | None = None) -> list[MachineStatus]:
    states = ["no heartbeat" if n in down else "running" for n in range(MACHINES)]
    return [
        MachineStatus(UUID(int=n), f"machine-{n:02}", "up", state, n == worked_on, n not in down, 0)
        for n, state in enumerate(states)
    ]


def printed(view: LiveView) -> list[str]:
    assert isinstance(view.console.file, StringIO)
    return view.console.file.getvalue().splitlines()


def test_events_are_printed_in_the_order_in_which_they_happened(environment: Environment, clock: ManualClock) -> None:
    """They are printed later, with the time of then."""
    view = LiveView(Console(file=StringIO(), width=200), None, clock=clock)
    view.on_invocation(Invocation("provisioner", 1, {"created": 3}))
    view.on_invocation(LIMITED)
    clock.sleep(0.75)
    view.on_power_change("abcdefgh-1", "reboot")
    view.on_invocation(AS_USUAL)
    view.on_invocation(Invocation("updater", 1, error="Boom: it broke\nTraceback"))
    view.say(environment, "all is well")
    assert [" ".join(line.split()[2:]) for line in printed(view)] == [
        "provisioner creates 3 machines",
        "(not contacted before it has booted)",
        "recoverer limits recovery: too many do not report, likely an outage",
        "power abcdefgh: reboot",
        "recoverer recovers as usual again",
        "recoverer finds 1 machine alive over SSH: restarts agents",
        "recoverer takes a recovery step at 2 machines",
        "updater Boom: it broke",
        "all is well",
    ]
    assert max(map(len, printed(view))) <= 80
    times = [line.split()[0] for line in printed(view) if line.split()[0][0].isdigit()]
    assert times[:4] == ["0.2", "0.2", "0.2", "1.0"]


def test_what_was_under_way_at_the_end_is_printed(environment: Environment) -> None:
    view = LiveView(Console(file=StringIO(), width=200), None)
    vars(environment)["machines"] = list
    vars(environment)["schedules"] = SimpleNamespace(close=lambda: view.on_invocation(LIMITED))
    finish(environment, view)
    assert [line.split()[2:5] for line in printed(view)] == [["recoverer", "limits", "recovery:"]]


def test_the_table_shows_which_loop_works_on_what(environment: Environment) -> None:
    """Of a machine that is worked on, and in all: the Provisioner and the Updater work on none."""
    console = Console(file=StringIO(), width=80, height=60, force_terminal=True, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        LiveView(console, live).refresh(environment, statuses(28, 29, worked_on=29))
        Console(file=(drawn := StringIO()), width=80).print(live.get_renderable())
    assert [line.count("recoverer at work") for line in drawn.getvalue().splitlines()].count(1) == 1
    assert drawn.getvalue().count("no heartbeat") == 1
    assert "at work: provisioner, recoverer (2 machines)" in drawn.getvalue()


@pytest.mark.parametrize("height", [24, 40])
def test_the_table_gives_way_to_the_events(environment: Environment, height: int) -> None:
    """On a small terminal the machines hid all events, even that recovery was limited."""
    screen = StringIO()
    console = Console(
        file=screen, width=80, height=height, force_terminal=True, force_interactive=True, color_system=None
    )
    with Live(console=console, auto_refresh=False) as live:
        view = LiveView(console, live)
        view.refresh(environment, statuses(29))
        live.refresh()
        view.on_invocation(LIMITED)
        view.refresh(environment, statuses(29))
        Console(file=(drawn := StringIO()), width=80).print(live.get_renderable())
    lines = drawn.getvalue().splitlines()
    assert len(lines) <= height - 12
    assert "30 machines, 29 running, recovery limited" in " ".join(drawn.getvalue().split())
    for words in ("machine-", "no heartbeat", f"and {MACHINES - (len(lines) - 7)} more machines"):
        assert words in drawn.getvalue()
    assert ("limits recovery" in screen.getvalue(), "[red]" in screen.getvalue()) == (True, False)
