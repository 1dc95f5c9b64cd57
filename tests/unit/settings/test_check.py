"""The rules between settings, each at its boundary, on both sides."""

import pytest
from shepherd_core.settings.deployment import DeploymentSettings
from shepherd_core.settings.effective import effective
from shepherd_core.settings.rules import RULES

SHORT_GRACE = "reboot:1:grace=420,quarantine"
LONG_POLICY = "reboot:1:grace=86400,power-cycle:1:grace=86400,quarantine"

# Settings that are not the defaults; and whether they break a rule, whose fault names these two.
CASES: list[tuple[dict[str, object], bool, tuple[str, str]]] = []


def case(broken: dict[str, object], kept: dict[str, object], *names: str) -> None:
    """Add both sides of a boundary."""
    first, second = names
    CASES.extend([(broken, True, (first, second)), (kept, False, (first, second))])


def rate(minutes: int) -> dict[str, object]:
    """Return the setting of a Recoverer that runs so often."""
    return {"LOOP_MINUTES": f"1,1,{minutes},1"}


RATE, TIMEOUT = (
    "minutes between two runs of the recoverer (SHEPHERD_LOOP_MINUTES)",
    "recoverer.heartbeat_timeout_seconds",
)
case(rate(31), rate(30), RATE, TIMEOUT)
case(
    {**rate(15), "HEARTBEAT_TIMEOUT_SECONDS": 299.9},
    {**rate(15), "HEARTBEAT_TIMEOUT_SECONDS": 300},
    RATE,
    TIMEOUT,
)
case({**rate(1440)}, {**rate(0)}, RATE, TIMEOUT)
OWNED: dict[str, object] = {"BUCKET_OWNER": "123456789012"}
case(OWNED, {**OWNED, "AGENT_SHA256": "any"}, "SHEPHERD_BUCKET_OWNER", "initializer.agent_sha256")
case(OWNED, {**OWNED, "AGENT_SHA256": "0" * 64}, "SHEPHERD_BUCKET_OWNER", "initializer.agent_sha256")
RATE_OF_API, LIMIT = "SHEPHERD_AGENT_API_RATE", "provisioner.max_machines"
case({"AGENT_API_RATE": 50, "MAX_MACHINES": 6001}, {"AGENT_API_RATE": 50, "MAX_MACHINES": 6000}, RATE_OF_API, LIMIT)
case(
    {"AGENT_API_RATE": 200, "MAX_MACHINES": 6000, "HEARTBEAT_INTERVAL_SECONDS": 59},
    {"AGENT_API_RATE": 200, "MAX_MACHINES": 0},  # no limit, of which nothing follows
    RATE_OF_API,
    LIMIT,
)
INTERVAL, STARTUP = "agent_api.heartbeat_interval_seconds", "recoverer.startup_timeout_seconds"
case({"HEARTBEAT_TIMEOUT_SECONDS": 229.9}, {"HEARTBEAT_TIMEOUT_SECONDS": 230}, STARTUP, TIMEOUT)
case({"STARTUP_TIMEOUT_SECONDS": 229.9}, {"STARTUP_TIMEOUT_SECONDS": 230}, STARTUP, TIMEOUT)
case({"HEARTBEAT_INTERVAL_SECONDS": 9}, {"HEARTBEAT_INTERVAL_SECONDS": 10}, INTERVAL, INTERVAL)
CONNECTIONS = "bmdb.bmdb_max_connections"
case({"BMDB_MAX_CONNECTIONS": 16}, {"BMDB_MAX_CONNECTIONS": 17}, "SHEPHERD_LOOP_MINUTES", CONNECTIONS)
case(
    {"BMDB_MAX_CONNECTIONS": 4, "LOOP_CONCURRENCY": 1},
    {"BMDB_MAX_CONNECTIONS": 5, "LOOP_CONCURRENCY": 1},
    "SHEPHERD_LOOP_CONCURRENCY",
    CONNECTIONS,
)
case(
    {"AGENT_API_CONCURRENCY": 84},
    {"AGENT_API_CONCURRENCY": 83},
    "SHEPHERD_AGENT_API_CONCURRENCY",
    CONNECTIONS,
)
USERS = {"BMDB_ROLES": "a"}
case(
    {**USERS, "BMDB_MAX_CONNECTIONS": 66},  # of which the agent API's user may have 50
    {**USERS, "BMDB_MAX_CONNECTIONS": 67},
    "bmdb.bmdb_roles",
    CONNECTIONS,
)
case(
    {**USERS, "AGENT_API_CONCURRENCY": 84},
    {**USERS, "AGENT_API_CONCURRENCY": 83},
    "SHEPHERD_AGENT_API_CONCURRENCY",
    CONNECTIONS,
)
case(
    {"BMDB_MAX_CONNECTIONS": 3, "LOOP_MINUTES": "5,5,3,0"},
    {"BMDB_MAX_CONNECTIONS": 4, "LOOP_MINUTES": "5,5,3,0"},
    "SHEPHERD_LOOP_MINUTES",
    CONNECTIONS,
)
POLICY, STARTS = "recoverer.remediation_policy", "minutes between two runs of the initializer (SHEPHERD_LOOP_MINUTES)"
case(
    {"REMEDIATION_POLICY": "reboot:1:grace=720,quarantine", "LOOP_MINUTES": "1,10,1,1"},
    {"REMEDIATION_POLICY": "reboot:1:grace=721,quarantine", "LOOP_MINUTES": "1,10,1,1"},
    POLICY,
    STARTS,
)
case(
    {"REMEDIATION_POLICY": "reboot:1:boot-wait=1500,quarantine"},
    {"REMEDIATION_POLICY": "reboot:1:boot-wait=1499,quarantine"},
    POLICY,
    STARTS,
)
case(
    {"REMEDIATION_POLICY": "restart-agent:1:grace=300,quarantine"},
    {"REMEDIATION_POLICY": "restart-agent:1:grace=301,quarantine"},  # which waits for no boot
    POLICY,
    STARTS,
)
case(
    {"HISTORY_DAYS": 2, "REMEDIATION_POLICY": LONG_POLICY},  # two days, and twice the time to seem healthy
    {"HISTORY_DAYS": 3, "REMEDIATION_POLICY": LONG_POLICY},
    "recoverer.history_days",
    POLICY,
)
REDFISH: dict[str, object] = {"PROVIDER": "redfish", "REDFISH_LIST": "list.json"}


# What the provider cannot do, no rule is about.
STATIC: dict[str, object] = {"PROVIDER": "static"}
LISTED = {**STATIC, "STATIC_LIST": "list.json"}
RESTART_AGENT = {"REMEDIATION_POLICY": "restart-agent:1,quarantine"}
for settings, *named in (
    (rate(31), RATE, TIMEOUT),
    ({"HEARTBEAT_TIMEOUT_SECONDS": 200}, STARTUP, TIMEOUT),
    ({"LOOP_MINUTES": "1,30,1,1"}, POLICY, STARTS),
):
    case({**LISTED, **RESTART_AGENT, **settings}, {**LISTED, **settings}, *named)
case(
    {**LISTED, "BMDB_MAX_CONNECTIONS": 13},
    {**LISTED, "BMDB_MAX_CONNECTIONS": 14},
    "SHEPHERD_LOOP_MINUTES",
    CONNECTIONS,
)
EQUINIX = {
    "PROVIDER": "equinix",
    "EQUINIX_PROJECT_ID": "p",
    "EQUINIX_DEVICE_PREFIX": "a-",
    "EQUINIX_KEY_LABEL": "a",
}
POWER_CYCLE = {"REMEDIATION_POLICY": "reboot:1,power-cycle:1:boot-wait=1500,quarantine"}
REINSTALL = {"REMEDIATION_POLICY": "reboot:1,reinstall:1:boot-wait=1500,quarantine"}
case(
    {**REDFISH, **POWER_CYCLE},
    {**EQUINIX, **POWER_CYCLE},  # which cannot
    POLICY,
    STARTS,
)
case(
    {**REDFISH, **REINSTALL},  # which can if there is something to boot from
    {**LISTED, **REINSTALL},
    POLICY,
    STARTS,
)
case(
    {**REDFISH, "HISTORY_DAYS": 2, "REMEDIATION_POLICY": LONG_POLICY},
    {**EQUINIX, "HISTORY_DAYS": 2, "REMEDIATION_POLICY": LONG_POLICY},
    "recoverer.history_days",
    POLICY,
)
EC2 = {"PROVIDER": "ec2", "EC2_LIMIT": 1, "EC2_SUBNETS": "subnet-1", "EC2_IMAGE": "ami-1", "EC2_INSTANCE_TYPE": "m7i"}
SOURCES: list[tuple[dict[str, object], str, str, str]] = [
    (STATIC, "STATIC_LIST", "provider.static.static_list", "machines.json"),
    ({"PROVIDER": "redfish"}, "REDFISH_LIST", "provider.redfish.redfish_list", "machines.json"),
    (REDFISH, "REDFISH_CA_SOURCE", "provider.redfish.redfish_ca_source", "bmc-ca.pem"),
    ({}, "BMDB_CA_SOURCE", "bmdb.bmdb_ca_source", "bmdb-ca.pem"),
    ({}, "AGENT_CA_SOURCE", "initializer.agent_ca_source", "agent-ca.pem"),
]
for others, variable, key, document in SOURCES:
    for start in ("s3://bucket/", "ssm:/stack/"):
        case(
            {**others, variable: f"{start}other/{document}"},
            {**others, variable: f"{start}documents/{document}"},
            key,
            key,
        )
    case({**others, variable: "s3://bucket/documents/*"}, {**others, variable: f"/etc/{document}"}, key, key)
TEMPLATE = "provider.ec2.ec2_launch_template"
case({**EC2, "EC2_LAUNCH_TEMPLATE": "web"}, {**EC2, "EC2_LAUNCH_TEMPLATE": "lt-1"}, TEMPLATE, TEMPLATE)
case({**EC2}, {**EC2, "EC2_SECURITY_GROUPS": "sg-1"}, "provider.ec2.ec2_security_groups", TEMPLATE)


def faults(monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]) -> list[str]:
    """Return what is wrong with a deployment that has these in its environment."""
    for name, value in settings.items():
        monkeypatch.setenv(f"SHEPHERD_{name}", str(value))
    return effective(None).faults


def names(fault: str, *settings: str) -> bool:
    """Return whether the fault names all of the settings, and a value for each."""
    return all(f"{setting} is " in fault.partition(": ")[0] for setting in settings)


@pytest.mark.parametrize(("settings", "broken", "named"), CASES)
def test_a_rule_is_broken_on_one_side_of_its_boundary(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], broken: bool, named: tuple[str, str]
) -> None:
    """The fault names both settings, their values, what goes wrong and what to do."""
    found = [fault for fault in faults(monkeypatch, settings) if names(fault, *named)]
    assert len(found) == broken
    for fault in found:
        assert len(fault.partition(": ")[2]) > 50


def test_the_defaults_break_no_rule() -> None:
    """A deployment that changes nothing is a good one."""
    assert effective(None).faults == []


def test_every_rule_has_a_case() -> None:
    """A rule that no test breaks may never hold."""
    broken = {named for _, is_broken, named in CASES if is_broken}
    assert len(broken) >= len(RULES)


def test_every_broken_rule_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One deployment must be enough to correct them all."""
    found = faults(monkeypatch, {"HEARTBEAT_TIMEOUT_SECONDS": 200, "REMEDIATION_POLICY": SHORT_GRACE, **rate(31)})
    assert len(found) == 3


def test_a_setting_with_a_fault_of_its_own_breaks_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows from a wrong value says nothing; rules between other settings are still checked."""
    found = faults(monkeypatch, {"HEARTBEAT_TIMEOUT_SECONDS": -1, "REMEDIATION_POLICY": SHORT_GRACE})
    assert [fault.partition(" ")[0] for fault in found] == [
        "SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS",
        "recoverer.remediation_policy",
    ]


@pytest.mark.parametrize(
    ("minutes", "timeout", "remedy"),
    [
        (10, 180, "run the Recoverer every 9 minutes or more often, or set the timeout to 200 or more"),
        (31, 3600, "run the Recoverer every 30 minutes or more often"),
        (10, 19, "set the timeout to 200 or more"),
    ],
)
def test_a_recoverer_that_runs_too_rarely_is_told_what_would_help(
    monkeypatch: pytest.MonkeyPatch, minutes: int, timeout: int, remedy: str
) -> None:
    """No schedule is shorter than a minute, and none may be longer than thirty."""
    found = faults(monkeypatch, {**rate(minutes), "HEARTBEAT_TIMEOUT_SECONDS": timeout})
    (fault,) = (each for each in found if names(each, RATE, TIMEOUT))
    assert fault.endswith(f"does not count as time without a heartbeat: {remedy}")


def test_a_fault_tells_values_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the source code at hand."""
    (fault,) = faults(monkeypatch, {"HEARTBEAT_TIMEOUT_SECONDS": 200})
    assert fault == (
        "recoverer.heartbeat_timeout_seconds is 200 and recoverer.startup_timeout_seconds is 1800: healthy machines "
        "that lose three requests in a row would be recovered: set each to 230 or more"
    )


@pytest.mark.parametrize("text", ["1,1,1", "1,1,1,1,1", "1,1,1,x", "1,1,1,-1", "1,1,1,1.5", "1,1,1,1441", "", ","])
def test_minutes_that_are_not_four_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """They decide which loops run at all."""
    found = faults(monkeypatch, {"LOOP_MINUTES": text})
    assert [fault.partition(" ")[0] for fault in found] == ["SHEPHERD_LOOP_MINUTES"] * bool(text)
    if not text:
        assert DeploymentSettings().loop_minutes == "1,1,1,1"
