from collections.abc import Mapping

import pytest
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.deployment import DeploymentSettings
from shepherd_core.settings.effective import effective
from shepherd_core.settings.rules import LOST_REQUESTS_SECONDS, RULES, check

LONG_POLICY = "reboot:1:grace=86400,power-cycle:1:grace=86400,quarantine"
SHORT_GRACE = "reboot:1:grace=420,quarantine"
ALL = frozenset(Capability)
REBOOTS = frozenset({Capability.REBOOT})
NOTHING: frozenset[Capability] = frozenset()

RATE, LIMIT, DAYS, ROLES = "SHEPHERD_LOOP_MINUTES", "provisioner.max_machines", "history_days", "bmdb.bmdb_roles"
TIMEOUT, STARTUP = "recoverer.heartbeat_timeout_seconds", "recoverer.startup_timeout_seconds"
INTERVAL, POLICY = "agent_api.heartbeat_interval_seconds", "recoverer.remediation_policy"
OWNER, AGENT, SHA = "SHEPHERD_BUCKET_OWNER", "initializer.agent_source", "initializer.agent_sha256"
API_RATE, API, LOOP = "SHEPHERD_AGENT_API_RATE", "SHEPHERD_AGENT_API_CONCURRENCY", "SHEPHERD_LOOP_CONCURRENCY"
CONNECTIONS = "bmdb.bmdb_max_connections"
GROUPS, TEMPLATE = "provider.ec2.security_groups", "provider.ec2.launch_template"
OWNED = {OWNER: "123456789012", AGENT: "s3://a/documents/agent"}
USERS, EC2, RARE = {ROLES: "a"}, {GROUPS: None, TEMPLATE: None}, {RATE: "1,10,1,1"}
LEAST = LOST_REQUESTS_SECONDS
DEFAULTS = {key: value.value for key, value in effective(None).values.items()}

# A setting that the fault names, values that break the rule, and values that just keep it.
CASES: list[tuple[str, Mapping[str, object], Mapping[str, object]]] = [
    (TIMEOUT, {RATE: "1,1,31,1"}, {RATE: "1,1,30,1"}),
    (TIMEOUT, {RATE: "1,1,15,1", TIMEOUT: 299.9}, {RATE: "1,1,15,1", TIMEOUT: 300}),
    (TIMEOUT, {RATE: "1,1,1440,1"}, {RATE: "1,1,0,1"}),
    (STARTUP, {TIMEOUT: LEAST - 0.1}, {TIMEOUT: LEAST}),
    (STARTUP, {STARTUP: LEAST - 0.1}, {STARTUP: LEAST}),
    (INTERVAL, {INTERVAL: 9}, {INTERVAL: 10}),
    (POLICY, {POLICY: SHORT_GRACE}, {POLICY: "reboot:1:grace=421,quarantine"}),
    (POLICY, {POLICY: "reboot:1:grace=720,quarantine", **RARE}, {POLICY: "reboot:1:grace=721,quarantine", **RARE}),
    (POLICY, {POLICY: "reboot:1:boot-wait=1500,quarantine"}, {POLICY: "reboot:1:boot-wait=1499,quarantine"}),
    # A restart of the agent waits for no boot.
    (POLICY, {POLICY: "restart-agent:1:grace=300,quarantine"}, {POLICY: "restart-agent:1:grace=301,quarantine"}),
    (DAYS, {DAYS: 2, POLICY: LONG_POLICY}, {DAYS: 3, POLICY: LONG_POLICY}),  # and twice the time to seem healthy
    (DAYS, {DAYS: 1, TIMEOUT: 20_000}, {DAYS: 3, TIMEOUT: 20_000}),
    (CONNECTIONS, {CONNECTIONS: 16}, {CONNECTIONS: 17}),
    (LOOP, {CONNECTIONS: 4, LOOP: 1}, {CONNECTIONS: 5, LOOP: 1}),
    (API, {API: 84}, {API: 83}),
    (ROLES, {**USERS, CONNECTIONS: 66}, {**USERS, CONNECTIONS: 67}),  # of which the agent API's user may have 50
    (API, {**USERS, API: 84}, {**USERS, API: 83}),
    (RATE, {CONNECTIONS: 3, RATE: "5,5,3,0"}, {CONNECTIONS: 4, RATE: "5,5,3,0"}),
    (LIMIT, {API_RATE: 50, LIMIT: 6001}, {API_RATE: 50, LIMIT: 6000}),
    (LIMIT, {API_RATE: 200, LIMIT: 6000, INTERVAL: 59}, {API_RATE: 200, LIMIT: 0}),  # no limit: nothing follows
    (SHA, OWNED, {**OWNED, SHA: "any"}),
    (SHA, OWNED, {**OWNED, SHA: "0" * 64}),
    (AGENT, OWNED, {**OWNED, AGENT: None}),
    (SHA, {SHA: "any"}, {}),
    (TEMPLATE, {**EC2, TEMPLATE: "web"}, {**EC2, TEMPLATE: "lt-1"}),
    (TEMPLATE, EC2, {**EC2, GROUPS: "sg-1"}),
    *(
        (key, {key: f"{start}{name}"}, {key: right})
        for key, name in (
            ("provider.static.machines", "machines.json"),
            ("provider.redfish.machines", "machines.json"),
            ("provider.redfish.ca_source", "bmc-ca.pem"),
            ("bmdb.bmdb_ca_source", "bmdb-ca.pem"),
            ("initializer.agent_ca_source", "agent-ca.pem"),
            ("initializer.agent_source", "agent"),
        )
        for start, right in (
            ("s3://bucket/other/", f"s3://bucket/documents/{name}"),
            ("ssm:/stack/other/", f"ssm:/stack/documents/{name}"),
            ("s3://bucket/documents/*", f"/etc/{name}"),
        )
    ),
]


@pytest.mark.parametrize(("named", "wrong", "right"), CASES)
def test_a_rule_breaks_past_its_boundary(named: str, wrong: Mapping[str, object], right: Mapping[str, object]) -> None:
    (fault,) = (each for each in check({**DEFAULTS, **wrong}, ALL) if f"{named} is " in each)
    values, _, told = fault.partition(": ")
    assert all(key in values for key in wrong if key in (named, RATE))
    assert len(told) > 50
    assert not any(f"{named} is " in each for each in check({**DEFAULTS, **right}, ALL))


@pytest.mark.parametrize(
    ("values", "able", "unable"),
    [
        ({RATE: "1,1,31,1"}, REBOOTS, NOTHING),
        ({TIMEOUT: 100}, REBOOTS, NOTHING),
        ({RATE: "1,30,1,1"}, REBOOTS, NOTHING),  # the grace is then too short
        ({CONNECTIONS: 16}, REBOOTS, NOTHING),  # the Recoverer has none
        ({POLICY: "reboot:1,power-cycle:1:boot-wait=1500,quarantine"}, ALL, REBOOTS),
        ({POLICY: "reboot:1,reinstall:1:boot-wait=1500,quarantine"}, ALL, REBOOTS),
        ({DAYS: 2, POLICY: LONG_POLICY}, ALL, REBOOTS),
    ],
)
def test_no_rule_is_about_what_the_provider_cannot_do(
    values: dict[str, object], able: frozenset[Capability], unable: frozenset[Capability]
) -> None:
    """A step that is never taken needs no time, and a Recoverer that is off no connection."""
    assert (len(check({**DEFAULTS, **values}, able)), check({**DEFAULTS, **values}, unable)) == (1, [])


def test_the_defaults_break_no_rule() -> None:
    assert check(DEFAULTS, ALL) == effective(None).faults == []


def test_every_rule_has_a_case_and_they_are_ten() -> None:
    assert all(any(named in rule.keys for named, _, _ in CASES) for rule in RULES)
    assert len({rule.broken.__qualname__ for rule in RULES}) == 10


def test_every_broken_rule_is_named_at_once() -> None:
    wrong = {**DEFAULTS, TIMEOUT: 200, POLICY: SHORT_GRACE, RATE: "1,1,31,1"}
    assert len(check(wrong, ALL)) == 3
    del wrong[TIMEOUT]
    (fault,) = check(wrong, ALL)
    assert fault.startswith(f"{POLICY} is {SHORT_GRACE}")


@pytest.mark.parametrize(
    ("minutes", "timeout", "remedy"),
    [
        (10, 180, "run the Recoverer every 9 minutes or more often, or set the timeout to 200 or more"),
        (31, 3600, "run the Recoverer every 30 minutes or more often"),
        (10, 19, "set the timeout to 200 or more"),
    ],
)
def test_a_fault_of_a_rare_recoverer_tells_what_helps(minutes: int, timeout: int, remedy: str) -> None:
    """No schedule is shorter than a minute, and none may be longer than thirty."""
    (fault,) = (each for each in check({**DEFAULTS, RATE: f"1,1,{minutes},1", TIMEOUT: timeout}, ALL) if RATE in each)
    assert fault.endswith(f"several times their timeout: {remedy}")


def test_a_fault_tells_values_and_remedy() -> None:
    (fault,) = check({**DEFAULTS, TIMEOUT: 200.0}, ALL)
    assert fault == (
        f"{TIMEOUT} is 200 and {STARTUP} is 1800: healthy machines that lose three requests in a row would be "
        f"recovered: set each to {LEAST} or more"
    )


@pytest.mark.parametrize("text", ["1,1,1", "1,1,1,1,1", "1,1,1,x", "1,1,1,-1", "1,1,1,1.5", "1,1,1,1441", "", ","])
def test_minutes_that_are_not_four_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """They decide which loops run at all; an empty variable is not set."""
    monkeypatch.setenv("SHEPHERD_LOOP_MINUTES", text)
    assert [fault.partition(" ")[0] for fault in effective(None).faults] == ["SHEPHERD_LOOP_MINUTES"] * bool(text)
    if not text:
        assert DeploymentSettings().loop_minutes == "1,1,1,1"
