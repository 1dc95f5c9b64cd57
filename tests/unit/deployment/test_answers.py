"""The answers of a deployment: what is accepted, and how each fault is told."""

import pytest
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.providers import BUILT_IN

from shepherdctl.deployment.answers import WITHOUT_FUNCTION_URL, Answers, read
from shepherdctl.deployment.template import parameters
from tests.support.deployment.deployments import REQUIRED, TEMPLATE

PARAMETERS = parameters()
SMALLEST = {"region": "eu-central-1", "bucket": "bucket", "bmdb_host": "db.example.com"}


def written(value: str) -> str:
    return value if value.isdecimal() else f'"{value}"'


def document(provider: str = "static", more: str = "", **answers: str) -> bytes:
    """Return the smallest document with these *answers*, and *more* below the provider's settings."""
    given = {**SMALLEST, **answers}
    lines = ["version = 1", "[deployment]", *(f'{key} = "{value}"' for key, value in given.items())]
    lines += [f"[provider.{provider}]", *(f"{key} = {written(value)}" for key, value in REQUIRED[provider].items())]
    return "\n".join([*lines, more]).encode()


def answers(provider: str = "static", more: str = "", **given: str) -> Answers:
    return read(document(provider, more, **given), PARAMETERS)


def faults(content: bytes) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read(content, PARAMETERS)
    return caught.value.faults


@pytest.mark.parametrize("provider", BUILT_IN)
def test_three_answers_and_a_provider_are_enough(provider: str) -> None:
    found = answers(provider)
    assert (found.stack, found.provider, found.bucket) == ("shepherd", provider, "bucket")
    assert found.parameters.keys() == TEMPLATE["Parameters"].keys()


@pytest.mark.parametrize("missing", SMALLEST)
def test_what_cannot_be_known_must_be_answered(missing: str) -> None:
    content = document().replace(f'{missing} = "{SMALLEST[missing]}"'.encode(), b"")
    (fault,) = faults(content)
    assert fault.startswith(f"deployment.{missing} is missing. ")


@pytest.mark.parametrize("name", ["bucket", "bmdb_host", "region", "stack", "vpc"])
def test_a_placeholder_is_refused(name: str) -> None:
    (fault,) = faults(document(**{name: "FIXME"}))
    assert f"deployment.{name} is 'FIXME': fill it in" in fault


@pytest.mark.parametrize(("name", "told"), [("a" * 50, None), ("a" * 51, "at most 50"), ("7up", "begin with a letter")])
def test_a_stack_name_that_would_fail_is_refused(name: str, told: str | None) -> None:
    """Lambda takes 64 letters, PostgreSQL 63: the functions and their users are called NAME-provisioner."""
    if told is None:
        assert answers(stack=name).stack == name
    else:
        assert told in faults(document(stack=name))[0]


def test_each_parameter_is_held_to_what_the_template_says() -> None:
    told = faults(document(loop_minutes="1,1,1", agent_endpoints="both", vpc="subnet-1"))
    assert [each.partition(" is ")[0] for each in told] == [
        "deployment.vpc",
        "deployment.loop_minutes",
        "deployment.agent_endpoints",
    ]
    assert "must be four of 0, 1, 2" in told[1]


def test_an_unknown_key_is_refused_with_a_hint() -> None:
    (fault,) = faults(document(loop_minute="1,1,1,1"))
    assert fault == "deployment.loop_minute is unknown: did you mean deployment.loop_minutes?"


def test_the_value_of_an_unknown_key_is_not_shown() -> None:
    """Somebody may have written a secret there."""
    assert "geheim" not in "".join(faults(document(bmdb_password="geheim")))


@pytest.mark.parametrize("text", ["deployment = 3", "deployment = [1]", "[[deployment]]"])
def test_a_table_that_is_none_is_refused(text: str) -> None:
    assert faults(f"version = 1\n{text}\n[provider.static]\nmachines = 'x'".encode())


def test_the_faults_of_the_settings_are_told_too() -> None:
    told = faults(document(more="[provisioner]\nmax_machines = -1", bucket="FIXME"))
    assert any(each.startswith("provisioner.max_machines is -1") for each in told)
    assert any(each.startswith("deployment.bucket") for each in told)


def test_rules_between_settings_know_the_schedules() -> None:
    assert "SHEPHERD_LOOP_MINUTES is 1,1,60,1" in faults(document("ec2", loop_minutes="1,1,60,1"))[0]


def test_a_document_without_a_provider_is_refused() -> None:
    lines = document().decode().partition("[provider")[0]
    assert "the provider is not named" in faults(lines.encode())[-1]


def test_settings_name_no_other_bucket() -> None:
    (fault,) = faults(document(bucket="another"))
    assert fault == (
        "provider.static.machines is 's3://bucket/documents/machines.json': functions may read s3://another and no "
        "other bucket"
    )


def test_a_document_that_no_function_reads_is_refused() -> None:
    (fault,) = faults(document(more='[deployment.documents]\n"hosts.json" = "hosts.json"'))
    assert "deployment.documents has 'hosts.json'" in fault


@pytest.mark.parametrize("region", ["eu-central-1", *sorted(WITHOUT_FUNCTION_URL)])
def test_a_region_without_function_urls_gets_the_http_api(region: str) -> None:
    found = answers(region=region)
    assert found.parameters["AgentEndpoints"] == ("function-url" if region == "eu-central-1" else "http-api")
    assert [region in each for each in found.notes] == ([] if region == "eu-central-1" else [True])


def test_an_endpoint_that_was_answered_is_taken() -> None:
    """AWS adds regions before we hear of it."""
    assert answers(region="ca-west-1", agent_endpoints="function-url").parameters["AgentEndpoints"] == "function-url"


def test_instances_are_launched_with_what_the_settings_name() -> None:
    assert answers("ec2").parameters["Ec2Resources"] == "m7i.metal-24xl,subnet-0a1,subnet-0b2,sg-0c3,ami-0d4"
    assert answers("ec2", ec2_resources="t3.small").parameters["Ec2Resources"] == "t3.small"


@pytest.mark.parametrize(
    ("provider", "login", "needed"),
    [
        ("static", "passwords", ("bmdb-password",)),
        ("static", "one-password", ("bmdb-password",)),
        ("static", "db-ABC", ()),
        ("hetzner", "passwords", ("bmdb-password", "hetzner-credential")),
        ("ec2", "db-ABC", ()),
    ],
)
def test_the_needed_secrets_follow_from_login_and_provider(provider: str, login: str, needed: tuple[str, ...]) -> None:
    assert answers(provider, bmdb_login=login).needed_secrets == needed
