"""
Take the pictures of the web console that the documentation shows: ``make screenshots``.

They show a simulated fleet in light and dark: eight machines hang at once, so that one is interrupted in an hour, and
an operator paused one machine.
"""

import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import overview, pauses
from shepherd_core.bmdb.machines.search import matching
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.states import State

from shepherdctl.console.server import background
from simulator.environment.environment import Environment, EnvironmentSettings
from simulator.environment.status import machine_statuses

_MACHINES = 24
_BROKEN = 8
_SECONDS = 600
_SIZE: ViewportSize = {"width": 1180, "height": 860}


def main() -> None:
    """Write ``console-light.png`` and ``console-dark.png`` to the folder in the first argument."""
    folder = Path(sys.argv[1])
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no browser is installed: apt-get install chromium, or put google-chrome on the PATH")
    with Environment(EnvironmentSettings(machines=_MACHINES)) as environment:
        _wait(lambda: sum(machine.running for machine in machine_statuses(environment)) == _MACHINES)
        for name in environment.pool.names()[:_BROKEN]:
            environment.inject_fault(name, "hang")
        with closing(Connection(environment.bmdb_settings, None, SystemClock())) as bmdb:
            machine = next(matching(bmdb))
            pauses.pause(bmdb, owner="ana", reason="its mainboard is being replaced", machine_id=machine.machine_id)
            _wait(lambda: any(one.kind == "budget" for one in overview.fleet_notices(bmdb)))
            _wait(lambda: sum(each.state == State.UNHEALTHY for each in matching(bmdb)) == _BROKEN - 1)
        with background(environment.bmdb_settings) as access, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                page = browser.new_page(color_scheme=scheme, viewport=_SIZE)
                page.goto(access.address_with_token)
                page.get_by_role("button", name="Pause updates").wait_for()
                page.wait_for_load_state()
                page.screenshot(path=folder / f"console-{scheme}.png")
            browser.close()


def _wait(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    end = clock.monotonic() + _SECONDS
    while not condition():
        if clock.monotonic() > end:
            sys.exit(f"the fleet was not as it has to be after {_SECONDS} s")
        clock.sleep(1)


if __name__ == "__main__":
    main()
