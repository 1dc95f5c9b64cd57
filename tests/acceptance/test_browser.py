import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from shepherd_core.bmdb.machines import pauses
from shepherd_core.settings.functions.bmdb import BmdbSettings

from shepherdctl.console.guard import Access
from simulator.environment.postgres import Postgres
from tests.conftest import ManualClock
from tests.support.bmdb.fleet import Fleet
from tests.support.console import plant_hostile_text, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = (Path(__file__).parents[1] / "support" / "axe" / "axe.min.js").read_text(encoding="utf-8")
HOSTILE = "<script>document.title = 'taken'</script>\"'><img src=x onerror=\"document.title = 'taken'\">"

_MILLISECONDS = 120_000

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser is installed: apt-get install chromium, or put google-chrome on the PATH"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # The sandbox does not work for root, and not in many containers; the pages are our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def database() -> Iterator[BmdbSettings]:
    with Postgres() as postgres:
        yield postgres.new_database()


@pytest.fixture
def fleet(database: BmdbSettings, clock: ManualClock) -> Iterator[Fleet]:
    with closing(Fleet(database, clock)) as fleet:
        yield fleet


@pytest.fixture
def machine_id(fleet: Fleet) -> UUID:
    """Return one of several machines in several states, with a history, whose names are hostile."""
    fleet.reporting_machine(30)
    fleet.provided_machine()
    fleet.quarantine(fleet.unhealthy_machine(), "PolicyExhausted: x")
    fleet.sql(
        "INSERT INTO ticks SELECT gen_random_uuid(), 'recoverer', 'static', '1', now() - n * interval '1 minute', "
        "now() - n * interval '1 minute' + interval '9 seconds', 'Succeeded', NULL, '{\"finished\": 2}' "
        "FROM generate_series(1, 40) AS n"
    )
    return plant_hostile_text(fleet, HOSTILE)


@pytest.fixture
def access(fleet: Fleet, machine_id: UUID) -> Iterator[Access]:
    with serving(fleet.settings) as access:
        yield access


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def visit(browser: Browser, access: Access, reported: list[str]) -> Iterator[Callable[..., Page]]:
    contexts = []

    def opened(path: str, **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(_MILLISECONDS)
        page.on("console", lambda message: reported.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: reported.append(str(error)))
        page.goto(access.address_with_token)
        page.wait_for_selector("#summary")
        assert "token" not in page.url
        page.goto(access.address + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert reported == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible_and_fit_their_screen(
    visit: Callable[..., Page], access: Access, machine_id: UUID, scheme: str, width: int
) -> None:
    page = visit("", color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in ("", "fails", "machines", "machines?location=" + quote(HOSTILE), f"machines/{machine_id}", "work"):
        page.goto(access.address + path)
        page.evaluate(AXE)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        violations = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found["violations"]]
        assert (violations, page.url) == ([], page.url)
        # Tables scroll by themselves.
        assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    page.goto(access.address + "machines")
    for row in page.locator("#list tbody tr").all():
        for cell in row.locator("td, th").all()[:2]:  # state and name
            box = cell.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width, cell.inner_text()


def test_times_are_also_those_of_the_reader(visit: Callable[..., Page], access: Access, machine_id: UUID) -> None:
    page = visit(f"machines/{machine_id}", timezone_id="Asia/Kolkata")
    utc, local = page.locator("#history time.at").first.inner_text().split(" · ")
    assert local.endswith("GMT+5:30")
    minutes = [60 * int(clock[:2]) + int(clock[3:5]) for clock in (utc[-8:], local.split()[-2])]
    assert (minutes[1] - minutes[0]) % 1440 == 330
    assert " UTC · " in (page.locator("#history time").first.get_attribute("title") or "")
    assert page.locator("#read").inner_text().endswith("GMT+5:30")


@pytest.mark.parametrize("path", ["machines?location=", "machines/"])
def test_a_command_is_copied_as_it_is_shown(visit: Callable[..., Page], machine_id: UUID, path: str) -> None:
    path += quote(HOSTILE) if path.endswith("=") else str(machine_id)
    page = visit(path, permissions=["clipboard-read", "clipboard-write"])
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    command, button = page.locator("dl .command").nth(1), page.locator("dl .copy").nth(1)
    button.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command.text_content()
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
    page.locator("dl .copy").nth(2).click()
    page.get_by_role("button", name="Press Ctrl-C").wait_for()
    assert page.evaluate("getSelection().toString()") == page.locator("dl .command").nth(2).text_content()


def test_commands_are_read_without_scripts(visit: Callable[..., Page], machine_id: UUID) -> None:
    page = visit(f"machines/{machine_id}", java_script_enabled=False)
    assert page.get_by_text(f"shepherdctl logs {machine_id}").is_visible()
    assert page.locator(".copy").first.is_hidden()


def test_a_page_updates_and_keeps_what_readers_do(visit: Callable[..., Page], fleet: Fleet, machine_id: UUID) -> None:
    page = visit(f"machines/{machine_id}")
    page.get_by_text("Times (UTC)").first.click()
    page.locator("#timeline a").nth(1).focus()
    pauses.pause(fleet.connection, owner="carl", reason="a new pause", machine_id=machine_id)
    page.get_by_text("a new pause").first.wait_for()
    fleet.quarantine(machine_id)
    expect(page).to_have_title(re.compile("^quarantined: "), timeout=_MILLISECONDS)
    assert page.evaluate("document.activeElement.textContent") == "30 days"
    assert page.locator("#times").evaluate("each => each.open")


def test_updates_can_be_paused(visit: Callable[..., Page]) -> None:
    page = visit("machines")
    page.get_by_role("button", name="Pause updates").click()
    assert page.get_by_role("status").inner_text() == "updates are paused"
    with page.expect_request(lambda request: request.url.endswith("/machines")):
        page.get_by_role("button", name="Pause updates").click()
    assert page.get_by_role("status").inner_text() == ""


def test_the_keyboard_is_enough(visit: Callable[..., Page]) -> None:
    """First comes the link over the navigation; a filter is chosen and sent without a mouse."""
    page = visit("machines")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.get_by_label("Search").focus()
    page.keyboard.type("machine-")
    page.keyboard.press("Tab")
    page.keyboard.type("quarantined")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Show").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**state=quarantined**")
    assert page.locator("#list tbody tr").count() == 1
    page.locator("#list tbody a").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Next commands").wait_for()


def test_an_update_that_fails_is_said_and_passes(visit: Callable[..., Page], reported: list[str]) -> None:
    page = visit("")
    failed = page.get_by_text("not updated: the console does not answer")
    page.context.set_offline(True)
    failed.wait_for()
    page.context.set_offline(False)
    failed.wait_for(state="detached")
    assert all("ERR_INTERNET_DISCONNECTED" in each for each in reported)
    reported.clear()
