"""The command that shows what fails across the fleet."""

from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.machine import Process

from shepherdctl.descriptions.cures import CURES
from tests.support.bmdb.fleet import Fleet, claimed
from tests.support.command_line import CommandLine


def test_causes_are_counted_for_what_fails_now(fleet: Fleet) -> None:
    starting = [fleet.locate(fleet.provided_machine(), "ams") for _ in range(4)]
    healed = fleet.unhealthy_machine()
    session = fleet.open_session()
    works = [*claimed(session, Process.AGENT_START), *claimed(session, Process.RECOVERY)]
    work.fail(session, {each: work.Failure(SshTimedOut(f"no answer from {each.machine_id}"), 600) for each in works})
    fleet.sql("UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp()")
    waiting, quarantined = fleet.provided_machine(), fleet.provided_machine("redfish")
    fleet.sql("INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now(), 'a boot wait')", id=waiting)
    fleet.quarantine(quarantined, "still unhealthy after reboot")
    fleet.quarantine(fleet.reporting_machine())
    fleet.sql("UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp()")
    fleet.recover(fleet.reporting_machine(), 5)
    often = fleet.recover(fleet.reporting_machine(), 6)
    lost = fleet.fail(fleet.provided_machine(), "deploy failed: no disk")
    fleet.sql(
        "INSERT INTO capacity_penalties VALUES ('static', 'r1', now() + interval '1 h', 'too late', 'capacity-taken')"
    )
    shepherdctl = CommandLine(fleet.settings, {"SHEPHERD_LOOP_MINUTES": "0,0,0,0"})
    found = shepherdctl.load("causes")["causes"]
    assert [(one["loop"], one["kind"], one["count"], one["cure"]) for one in found] == [
        ("initializer", "ssh-timed-out", 4, CURES["ssh-timed-out"]),
        ("recoverer", "recovered-often", 1, CURES["recovered-often"]),
        ("provider", "provisioning-failed", 1, CURES["provisioning-failed"]),
        ("provisioner", "capacity-taken", 1, CURES["capacity-taken"]),
        ("quarantine", "reports-again", 1, CURES["reports-again"]),
        ("quarantine", "steps-used-up", 1, CURES["steps-used-up"]),
    ]
    assert len(found[0]["examples"]) == 3
    assert {*found[0]["examples"]} < {str(each) for each in starting} - {str(healed)}
    assert [(one["examples"], one["cause"]) for one in found if one["kind"] == "recovered-often"] == [
        ([str(often)], "6 times in the last day")
    ]
    assert [one["kind"] for one in shepherdctl.load("causes", "--location", "ams")["causes"]] == ["ssh-timed-out"]
    assert [one["loop"] for one in shepherdctl.load("causes", "--provider", "redfish")["causes"]] == ["quarantine"]
    shown = shepherdctl("causes")
    assert "    4  Initializer  ssh-timed-out: no answer from " in shown.stdout
    assert "provisioning-failed: deploy failed: no disk" in shown.stdout
    assert "ProvisioningFailedPermanent: deploy failed: no disk" in shepherdctl.read("machine", "show", str(lost))
    for filters in ("--cause", "provisioning-failed"), ("--state", "failed"):
        assert [one["machine_id"] for one in shepherdctl.load("machine", "list", *filters)] == [str(lost)]
    assert shown.stderr.splitlines()[5] == f"ssh-timed-out: {CURES['ssh-timed-out']} (docs/failures#ssh-timed-out)"
    assert shepherdctl("causes", "--provider", "equinix").stderr == "nothing fails\n"
    # Nothing fails where no machine is, but somebody meant another location; nor of what no loop touches.
    told = shepherdctl.told("causes", "--location", "amz", status=1)
    assert told == "error: no machine is at 'amz': did you mean 'ams'?"
    shepherdctl.load("pause", "--all", "--reason", "x")
    assert "1 pause in force: see shepherdctl pauses\n" in shepherdctl("causes").stderr
