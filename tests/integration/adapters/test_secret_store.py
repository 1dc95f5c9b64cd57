import json
import traceback
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.domain.errors import SecretError, SecretMissing, SecretUnavailable

from tests.support.providers.scripted_http import DROPPED, Answer, Script, scripted_server

NAME = "/shepherd/ssh-key"
VALUE = "correct horse battery staple"


@pytest.fixture
def ssm(aws: None) -> Any:
    return boto3.client("ssm")


@pytest.fixture
def scripted_ssm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    with scripted_server(lambda _: _ok({"Parameter": {"Name": NAME, "Value": VALUE}})) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", server.url)
        yield server


def _ok(body: object) -> Answer:
    return Answer(200, json.dumps(body).encode(), {"Content-Type": "application/x-amz-json-1.1"})


def _refusal(code: str, message: str = "") -> Answer:
    body = json.dumps({"__type": code, "message": message}).encode()
    return Answer(400, body, {"Content-Type": "application/x-amz-json-1.1"})


@pytest.mark.parametrize(
    ("max_age", "invalidated", "values", "reads"),
    [
        (300, False, ["old", "old", "old"], 1),
        (0, False, ["old", "new", "new"], 3),
        (300, True, ["old", "new", "new"], 2),
    ],
    ids=["fresh", "not fresh", "invalidated"],
)
def test_a_secret_is_read_again_when_it_is_not_fresh(
    scripted_ssm: Script, max_age: int, invalidated: bool, values: list[str], reads: int
) -> None:
    """SSM allows 40 calls a second to a whole account; a secret that was replaced must arrive without a deployment."""
    store = SsmSecretStore(max_age_seconds=max_age)
    scripted_ssm.answer = lambda _: _ok({"Parameter": {"Name": NAME, "Value": "old"}})
    seen = [store.get(NAME)]
    scripted_ssm.answer = lambda _: _ok({"Parameter": {"Name": NAME, "Value": "new"}})
    if invalidated:
        store.invalidate(NAME)
    assert ([*seen, store.get(NAME), store.get(NAME)], len(scripted_ssm.requests)) == (values, reads)
    assert json.loads(scripted_ssm.requests[0].body) == {"Name": NAME, "WithDecryption": True}


@pytest.mark.parametrize(("secret", "kind"), [(True, "SecureString"), (False, "String")])
def test_a_secret_is_stored_read_and_deleted(ssm: Any, secret: bool, kind: str) -> None:
    """By an operator. What is public is not encrypted, so that readers need no key; moto marks what is encrypted."""
    store = SsmSecretStore()
    store.put(NAME, VALUE, secret=secret)
    stored = ssm.get_parameter(Name=NAME, WithDecryption=True)["Parameter"]
    assert (stored["Value"], stored["Type"], store.get(NAME)) == (VALUE, kind, VALUE)
    assert VALUE not in repr(store)
    with pytest.raises(SecretMissing, match="ParameterAlreadyExists"):
        store.put(NAME, "new", secret=secret)
    assert store.get(NAME) == VALUE
    store.put(NAME, "new", secret=secret, replace=True)
    assert store.get(NAME) == "new"
    store.delete(NAME)
    assert store.find(NAME) is None
    with pytest.raises(SecretMissing, match="'/shepherd/ssh-key': there is no such SSM parameter"):
        store.get(NAME)
    with pytest.raises(SecretMissing, match="delete it"):  # a slip in the name would leave an old key in force
        store.delete(NAME)


def test_a_secret_is_made_once_whoever_is_first(ssm: Any) -> None:
    """No operator should have to create or see the password of a function; the database knows the one it was given."""

    def slow_make() -> str:
        assert SsmSecretStore().create_once(NAME, lambda: VALUE) == VALUE
        return "of the loser"

    for make in (slow_make, lambda: "another"):
        assert SsmSecretStore().create_once(NAME, make) == VALUE
    stored = ssm.get_parameter(Name=NAME, WithDecryption=True)["Parameter"]
    assert (stored["Value"], stored["Type"]) == (VALUE, "SecureString")


def test_a_secret_just_made_elsewhere_may_not_show_yet(scripted_ssm: Script) -> None:
    """SSM reads lag behind: to go on with one's own secret would be the worst of answers."""
    scripted_ssm.answer = lambda request: _refusal(
        "ParameterAlreadyExists" if "PutParameter" in request.headers["X-Amz-Target"] else "ParameterNotFound"
    )
    with pytest.raises(SecretUnavailable, match="does not show it yet"):
        SsmSecretStore().create_once(NAME, lambda: VALUE)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (_refusal("AccessDeniedException", "User: f is not authorized"), SecretMissing, "no permission to read it"),
        (_refusal("InvalidKeyId", "the key is disabled"), SecretMissing, "InvalidKeyId"),
        (_refusal("ValidationException", "bad name"), SecretMissing, "ValidationException"),
        (_refusal("ThrottlingException", "Rate exceeded"), SecretUnavailable, "ThrottlingException"),
        (Answer(200, b"{", {}, missing=10), SecretUnavailable, "could not read it now"),
        (DROPPED, SecretUnavailable, "ConnectionClosedError"),
    ],
)
def test_a_failure_is_ours_and_leaves_what_is_stored_alone(
    scripted_ssm: Script, answer: Answer, kind: type[SecretError], said: str
) -> None:
    scripted_ssm.answer = lambda _: answer
    store = SsmSecretStore()
    with pytest.raises(kind, match=said) as raised:
        store.find(NAME)
    assert (NAME in str(raised.value), raised.value.__cause__ is not None) == (True, True)
    assert raised.value.retryable is (kind is SecretUnavailable)


def test_a_missing_region_is_an_error_of_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(SecretMissing, match="no region is set: set AWS_DEFAULT_REGION"):
        SsmSecretStore().get(NAME)


@pytest.mark.parametrize("code", ["ValidationException", "AccessDeniedException"])
def test_a_secret_that_cannot_be_stored_is_not_logged(scripted_ssm: Script, code: str) -> None:
    """Some of AWS's refusals repeat what was sent, and this request holds a secret."""
    text = "not this" if code.startswith("Access") else f"Value '{VALUE}' at 'value' is wrong"
    scripted_ssm.answer = lambda _: _refusal(code, text)
    with pytest.raises(SecretMissing, match="write it") as raised:
        SsmSecretStore().put(NAME, VALUE)
    assert VALUE not in "".join(traceback.format_exception(raised.value)) + repr(raised.value)
    assert code in str(raised.value)
