"""What the console changes at the provider."""

import re
from collections.abc import Iterator
from html import unescape
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.work import history
from shepherd_core.settings.providers.ec2 import Ec2Settings

from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine
from tests.support.console import Visitor, said
from tests.support.providers.ec2_api import Ec2Api, ec2_api
from tests.support.providers.ec2_fleet import create, ec2_settings, end, environment, living, three_machines

WHY = {"reason": "it is sold"}


@pytest.fixture
def api() -> Iterator[Ec2Api]:
    """Return an account without instances."""
    with ec2_api() as api:
        yield api


@pytest.fixture
def settings(api: Ec2Api, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Ec2Settings:
    """Return how to reach a fleet there; the console has the same settings."""
    settings = ec2_settings()
    named = CommandLine(fleet.settings, {**environment(settings), "AWS_ENDPOINT_URL_EC2": api.server.url}).environment
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    return settings


@pytest.fixture
def machines(fleet: Fleet, settings: Ec2Settings) -> dict[str, UUID]:
    """Return the ids of three machines by provider id."""
    return three_machines(fleet, settings)


@pytest.fixture(scope="module")
def operator() -> str:
    """Return who may change something."""
    return "ana"


def test_a_release_needs_the_name_of_the_machine(
    visitor: Visitor, fleet: Fleet, machines: dict[str, UUID], api: Ec2Api
) -> None:
    """As on the terminal; who released it and why stays on record."""
    name, machine_id = next(iter(machines.items()))
    planned = visitor.plan("release", machine=str(machine_id), **WHY)
    assert f"{name} {str(machine_id)[:8]} ready will be released" in said(planned.text)
    wrong = visitor.confirm(planned, typed="yes")
    assert (wrong.status_code, name in living(api)) == (400, True)
    assert f"type {name} to continue; nothing was changed" in said(wrong.text)
    for _ in range(2):
        assert "done released" in said(visitor.confirm(planned, typed=name).text)
    assert name not in living(api)
    assert api.calls["TerminateInstances"] == 1
    shown = lookup.show_machine(fleet.connection, machine_id)
    assert (shown["decommissioned_by"], shown["decommissioned_reason"]) == ("ana", "it is sold")


def test_a_machine_whose_agent_reports_since_the_dry_run_is_not_released(
    visitor: Visitor, fleet: Fleet, machines: dict[str, UUID], api: Ec2Api
) -> None:
    """The form was opened when it was dead."""
    name, machine_id = next(iter(machines.items()))
    planned = visitor.plan("release", machine=str(machine_id), **WHY)
    fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, clock_timestamp())", id=machine_id)
    assert "Not done refused: its agent reported" in said(visitor.confirm(planned, typed=name).text)
    assert "There is nothing to do." in said(visitor.plan("release", machine=str(machine_id), **WHY).text)
    alive = visitor.plan("release", machine=str(machine_id), despite_heartbeat="yes", **WHY)
    assert "will be released" in said(alive.text)
    assert name in living(api)
    assert fleet.sql("SELECT * FROM machine_release") == []


def test_differences_lead_to_the_change_that_ends_them(
    visitor: Visitor, fleet: Fleet, machines: dict[str, UUID], api: Ec2Api, settings: Ec2Settings
) -> None:
    """A machine that is gone is forgotten, one of another BMDB adopted; not one that came back meanwhile."""
    gone, back, _ = machines
    foreign = create(settings, uuid4())
    fleet.pass_time(3600)
    end(api, gone)
    end(api, back)
    page = visitor.post("/differences", form_token=visitor.access.form_token).text
    links = {unescape(link) for link in re.findall(r'href="/change\?([^"]*)"', page)}
    assert links == {
        f"kind=forget&machine={machines[gone]}",
        f"kind=forget&machine={machines[back]}",
        f"kind=adopt&provider_id={foreign}&class=foreign",
    }
    assert '<option value="foreign" selected>' in visitor.read(
        f"/change?kind=adopt&provider_id={foreign}&class=foreign"
    )
    plans = {name: visitor.plan("forget", machine=str(machines[name]), **WHY) for name in (gone, back)}
    api.set_state(back, "running")
    assert "done forgotten" in said(visitor.confirm(plans[gone], typed=gone).text)
    assert "Not done refused: the provider has it in use" in said(visitor.confirm(plans[back], typed=back).text)
    planned = visitor.plan("adopt", provider_id=foreign, **{"class": "foreign"})
    assert "done adopted" in said(visitor.confirm(planned, typed=foreign).text)
    assert provided(fleet).keys() == {*machines, foreign} - {gone}
    (event,) = history.read_history(fleet.connection, provided(fleet)[foreign])
    assert (event["event"], event["failed_cause"]) == ("Adopted", "ana")
    assert lookup.show_machine(fleet.connection, machines[gone])["decommissioned_by"] == "ana"


def test_a_release_that_was_interrupted_is_canceled_or_completed(
    visitor: Visitor, fleet: Fleet, machines: dict[str, UUID], api: Ec2Api
) -> None:
    """The console ended between the confirmation and the provider's answer; the page of work shows it."""
    (first, second, _), (kept, released, _) = machines, machines.values()
    fleet.sql(
        "INSERT INTO machine_release (machine_id, asked_at, asked_by, reason) "
        "SELECT machine_id, now() - interval '1 hour', 'ana', 'slow' FROM machine_provided "
        "WHERE machine_id IN (:first, :second)",
        first=kept,
        second=released,
    )
    assert f"/change?kind=cancel-release&amp;machine={kept}" in visitor.read("/work")
    planned = visitor.plan("cancel-release", machine=str(kept), **WHY)
    assert "done kept" in said(visitor.confirm(planned, typed=first).text)
    assert fleet.sql("SELECT machine_id FROM machine_release") == [[released]]
    (event,) = history.read_history(fleet.connection, kept)
    assert (event["event"], event["failed_cause"]) == ("ReleaseCanceled", "ana: it is sold")
    planned = visitor.plan("release", machine=str(released), **WHY)
    assert "done released" in said(visitor.confirm(planned, typed=second).text)
    assert (first in living(api), second in living(api)) == (True, False)
