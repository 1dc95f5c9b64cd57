import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.providers import BUILT_IN

from shepherdctl.deployment.answers import WITHOUT_FUNCTION_URL, Answers, read
from shepherdctl.deployment.plan import DeleteCode, Found, FoundObject, FoundStack, plan
from shepherdctl.deployment.questions import Place, ask
from shepherdctl.deployment.template import Package, parameters
from tests.support.deployment.deployments import REQUIRED, TEMPLATE

PARAMETERS = parameters()
SMALLEST = {"region": "eu-central-1", "bucket": "bucket", "bmdb_host": "db.example.com"}


def written(value: str) -> str:
    return value if value.isdecimal() else f'"{value}"'


def document(provider: str = "static", more: str = "", **answers: str) -> bytes:
    """Return the smallest document with these *answers*, and *more* below the provider's settings."""
    lines = ["version = 1", "[deployment]", *(f'{key} = "{value}"' for key, value in {**SMALLEST, **answers}.items())]
    lines += [f"[provider.{provider}]", *(f"{key} = {written(value)}" for key, value in REQUIRED[provider].items())]
    return "\n".join([*lines, more]).encode()


def answers(provider: str = "static", **given: str) -> Answers:
    return read(document(provider, **given), PARAMETERS)


def faults(content: bytes) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read(content, PARAMETERS)
    return caught.value.faults


@pytest.mark.parametrize("provider", BUILT_IN)
def test_three_answers_and_a_provider_are_enough(provider: str) -> None:
    found = answers(provider)
    assert (found.stack, found.provider, found.bucket) == ("shepherd", provider, "bucket")
    assert answers(provider, stack="a" * 50).stack == "a" * 50
    assert found.parameters.keys() == TEMPLATE["Parameters"].keys()


def without(name: str) -> bytes:
    return document().replace(f'{name} = "{SMALLEST[name]}"'.encode(), b"")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        *((without(name), [f"deployment.{name} is missing. "]) for name in SMALLEST),
        *(
            (document(**{name: "FIXME"}), [f"deployment.{name} is 'FIXME': fill it in"])
            for name in ("bucket", "bmdb_host", "region", "stack", "vpc")
        ),
        # Lambda takes 64 letters, PostgreSQL 63: the functions and their users are called NAME-provisioner.
        (document(stack="a" * 51), ["at most 50"]),
        (document(stack="7up"), ["begin with a letter"]),
        # Each parameter is held to what the template says.
        (
            document(loop_minutes="1,1,1", agent_endpoints="both", vpc="subnet-1"),
            ["deployment.vpc is ", "must be four of 0, 1, 2", "deployment.agent_endpoints is "],
        ),
        (document(loop_minute="geheim"), ["deployment.loop_minute is unknown: did you mean deployment.loop_minutes?"]),
        *(
            (f"version = 1\n{text}\n[provider.static]\nmachines = 'x'".encode(), ["deployment"])
            for text in ("deployment = 3", "deployment = [1]", "[[deployment]]")
        ),
        (
            document(more="[provisioner]\nmax_machines = -1", bucket="FIXME"),
            ["provisioner.max_machines is -1", "deployment.bucket"],
        ),
        (document("ec2", loop_minutes="1,1,60,1"), ["SHEPHERD_LOOP_MINUTES is 1,1,60,1"]),
        (document().partition(b"[provider")[0], ["the provider is not named"]),
        (
            document(bucket="another"),
            ["'s3://bucket/documents/machines.json': functions may read s3://another and no other bucket"],
        ),
        (
            document(more='[deployment.documents]\n"hosts.json" = "hosts.json"'),
            ["deployment.documents has 'hosts.json'"],
        ),
    ],
)
def test_every_fault_of_the_answers_is_told(content: bytes, told: list[str]) -> None:
    found = faults(content)
    assert [each for each in told if not any(each in fault for fault in found)] == []
    assert len(found) == len(told)
    assert "geheim" not in "".join(found), "somebody may have written a secret at an unknown key"


@pytest.mark.parametrize("region", ["eu-central-1", *sorted(WITHOUT_FUNCTION_URL)])
def test_a_region_without_function_urls_gets_the_http_api(region: str) -> None:
    found = answers(region=region)
    assert found.parameters["AgentEndpoints"] == ("function-url" if region == "eu-central-1" else "http-api")
    assert [region in each for each in found.notes] == ([] if region == "eu-central-1" else [True])
    # AWS adds regions before we hear of it.
    assert answers(region=region, agent_endpoints="function-url").parameters["AgentEndpoints"] == "function-url"


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


LISTED = {
    "static": [{"ID": "a", "Addr": "10.0.0.1"}],
    "redfish": [{"ID": "a", "Addr": "10.0.0.1", "Bmc": "https://10.0.0.2", "Credential": "/shepherd/bmc/a"}],
}


class Operator:
    """Replies to each question what it was told, in turn; else what is in brackets."""

    def __init__(self, replies: Mapping[str, list[str]]) -> None:
        self.replies = {name: [*each] for name, each in replies.items()}
        self.told: list[str] = []
        self.asked: list[str] = []

    def reply(self, prompt: str) -> str:
        name = prompt.partition(" [")[0].removesuffix(": ")
        self.asked.append(name)
        left = self.replies.get(name, [])
        return f"{left.pop(0)}\n" if left else "\n"


def answered(folder: Path, provider: str = "static", /, **replies: list[str]) -> tuple[Answers, Operator]:
    (folder / "machines.json").write_text(json.dumps(LISTED.get(provider, [])))
    of_provider = {name: value for name, value in REQUIRED[provider].items() if name != "machines"}
    given = {"provider": provider, "bmdb_host": "127.0.0.1", **of_provider}
    operator = Operator({**{name: [each] for name, each in given.items()}, **replies})
    text = ask(operator.reply, operator.told.append, PARAMETERS, Place("123456789012", "eu-central-1", folder))
    return read(text.encode(), PARAMETERS), operator


@pytest.mark.parametrize("provider", BUILT_IN)
def test_the_answers_are_those_of_a_deployment(provider: str, tmp_path: Path) -> None:
    answers, operator = answered(tmp_path, provider)
    assert (answers.provider, answers.stack, answers.region) == (provider, "shepherd", "eu-central-1")
    assert answers.bucket == "shepherd-123456789012-eu-central-1"
    assert len(operator.asked) <= 15
    assert provider != "latitude" or "Range: ≥ 1" in "\n".join(operator.told)


def test_a_wrong_reply_is_explained_and_asked_again(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('[{"ID": "a"}]')
    replies = {"bucket": ["My Bucket", "my-bucket"], "stack": ["7", "blue"], "bmdb_login": ["root", "one-password"]}
    replies |= {"bmdb_host": ["", "database.invalid"], "machines.json": ["wrong.json", "absent.json", "machines.json"]}
    answers, operator = answered(tmp_path, **replies)
    assert (answers.bucket, answers.stack) == ("my-bucket", "blue")
    assert answers.documents == {"machines.json": "machines.json"}
    told = "\n".join(operator.told)
    for expected in (
        PARAMETERS["BmdbHost"].about,
        "'root' must be passwords",
        "'My Bucket' must be the name of a bucket",
        "'7' must begin with a letter",
        "there is no default: type a value",
        "database.invalid does not answer here",
        "Addr is missing",
        "absent.json",
    ):
        assert expected in told


def key(letter: str, suffix: str = "zip") -> str:
    return f"code/{letter * 64}.{suffix}"


NESTED = json.dumps({"CodeUri": f"s3://bucket/{key('b')}"}).encode()
PRESENT = {"CodeUri": f"s3://bucket/{key('a')}", "Location": f"https://s3/bucket/{key('c', 'template')}"}
THERE = {
    **{each: FoundObject("") for each in (key("a"), key("b"), key("d"), "code/of-mine.zip", "documents/agent")},
    key("c", "template"): FoundObject("", NESTED),
    key("e", "template"): FoundObject("", b"{}"),
}


@pytest.mark.parametrize(("template", "deleted"), [({}, [key("d"), key("e", "template")]), (PRESENT, [])])
def test_code_that_a_rollback_needs_stays(template: object, deleted: list[str]) -> None:
    """Also that of nested stacks; without another version, nothing goes."""
    package = Package("code/new", {"code/new": json.dumps(template).encode()})
    stack = FoundStack("UPDATE_COMPLETE", {"BmdbHost": ""}, PRESENT)
    changes = plan(answers("equinix"), Found("123456789012", objects=THERE, stack=stack), {}, {}, package)
    assert [key for each in changes if isinstance(each, DeleteCode) for key in each.keys] == deleted
