"""Secrets in SSM: moto for how it behaves, a scripted server for how it fails."""

import json
import traceback
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.domain.errors import SecretError, SecretMissing, SecretUnavailable

from tests.support.providers.scripted_http import Answer, Script, scripted_server

NAME = "/shepherd/ssh-key"
VALUE = "correct horse battery staple"


@pytest.fixture
def ssm(aws: None) -> Any:
    """Return a client of an empty SSM."""
    return boto3.client("ssm")


@pytest.fixture
def scripted_ssm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Let SSM be a server that the test scripts; it holds the secret unless told otherwise."""
    with scripted_server(lambda _: _ok({"Parameter": {"Name": NAME, "Value": VALUE}})) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", server.url)
        yield server


def _ok(body: object) -> Answer:
    return Answer(200, json.dumps(body).encode(), {"Content-Type": "application/x-amz-json-1.1"})


def _refusal(code: str, message: str = "", status: int = 400) -> Answer:
    body = json.dumps({"__type": code, "message": message}).encode()
    return Answer(status, body, {"Content-Type": "application/x-amz-json-1.1"})


def _shown(error: BaseException) -> str:
    """Return all that a log could show of *error*."""
    return "".join(traceback.format_exception(error)) + repr(error)


def test_a_secret_is_read_decrypted(ssm: Any) -> None:
    """Moto marks what is still encrypted with the key's name."""
    ssm.put_parameter(Name=NAME, Value=VALUE, Type="SecureString")
    assert SsmSecretStore().get(NAME) == VALUE


def test_a_missing_secret_is_named(ssm: Any) -> None:
    """The operator has to know which parameter to create."""
    with pytest.raises(SecretMissing, match="'/shepherd/ssh-key': there is no such SSM parameter"):
        SsmSecretStore().get(NAME)
    assert SsmSecretStore().find(NAME) is None


def test_a_secret_is_read_once_while_it_is_fresh(scripted_ssm: Script) -> None:
    """A function runs every minute; SSM allows 40 calls a second to a whole account."""
    store = SsmSecretStore(max_age_seconds=300)
    assert [store.get(NAME), store.get(NAME)] == [VALUE, VALUE]
    assert len(scripted_ssm.requests) == 1
    assert json.loads(scripted_ssm.requests[0].body) == {"Name": NAME, "WithDecryption": True}


def test_a_secret_that_is_not_fresh_is_read_again(scripted_ssm: Script) -> None:
    """A secret that was replaced must arrive without a deployment."""
    store = SsmSecretStore(max_age_seconds=0)
    store.get(NAME)
    scripted_ssm.answer = lambda _: _ok({"Parameter": {"Name": NAME, "Value": "new"}})
    assert store.get(NAME) == "new"


def test_an_invalidated_secret_is_read_again(scripted_ssm: Script) -> None:
    """After a refusal the newest API key is tried before an operator is alarmed."""
    store = SsmSecretStore()
    store.get(NAME)
    scripted_ssm.answer = lambda _: _ok({"Parameter": {"Name": NAME, "Value": "new"}})
    store.invalidate(NAME)
    assert [store.get(NAME), store.get(NAME)] == ["new", "new"]
    assert len(scripted_ssm.requests) == 2


def test_a_secret_that_is_not_there_is_not_found(ssm: Any) -> None:
    """A key before the current one exists only during a rotation."""
    assert SsmSecretStore().find(NAME) is None
    ssm.put_parameter(Name=NAME, Value=VALUE, Type="SecureString")
    assert SsmSecretStore().find(NAME) == VALUE


@pytest.mark.parametrize(("secret", "kind"), [(True, "SecureString"), (False, "String")])
def test_a_secret_is_stored_read_and_deleted(ssm: Any, secret: bool, kind: str) -> None:
    """By an operator; what is public is not encrypted, so that readers need no key."""
    store = SsmSecretStore()
    store.put(NAME, VALUE, secret=secret)
    stored = ssm.get_parameter(Name=NAME, WithDecryption=True)["Parameter"]
    assert (stored["Value"], stored["Type"]) == (VALUE, kind)
    assert store.get(NAME) == VALUE
    store.put(NAME, "new", secret=secret, replace=True)
    assert store.get(NAME) == "new"
    store.delete(NAME)
    assert store.find(NAME) is None


def test_a_secret_that_exists_is_replaced_only_on_request(ssm: Any) -> None:
    """The machines know the key that they were given."""
    store = SsmSecretStore()
    store.put(NAME, VALUE)
    with pytest.raises(SecretMissing, match="ParameterAlreadyExists"):
        store.put(NAME, "another")
    assert store.get(NAME) == VALUE


def test_deleting_a_secret_that_is_not_there_is_an_error(ssm: Any) -> None:
    """A slip in the name would leave an old key in force."""
    with pytest.raises(SecretMissing, match="delete it"):
        SsmSecretStore().delete(NAME)


def test_a_secret_is_made_at_first_use(ssm: Any) -> None:
    """No operator should have to create or see the password of a function."""
    assert SsmSecretStore().create_once(NAME, lambda: VALUE) == VALUE
    stored = ssm.get_parameter(Name=NAME, WithDecryption=True)["Parameter"]
    assert (stored["Value"], stored["Type"]) == (VALUE, "SecureString")


def test_a_secret_that_exists_is_not_made_again(ssm: Any) -> None:
    """The database knows the password that it was given."""
    ssm.put_parameter(Name=NAME, Value=VALUE, Type="SecureString")

    def make() -> str:
        raise AssertionError

    assert SsmSecretStore().create_once(NAME, make) == VALUE


def test_the_loser_of_the_race_to_create_a_secret_uses_the_winners(ssm: Any) -> None:
    """Two functions start at the same minute of the first day: one password must come of it."""

    def slow_make() -> str:
        assert SsmSecretStore().create_once(NAME, lambda: "of the winner") == "of the winner"
        return "of the loser"

    store = SsmSecretStore()
    assert store.create_once(NAME, slow_make) == "of the winner"
    assert store.get(NAME) == "of the winner"


def test_a_secret_that_was_just_made_elsewhere_may_not_show_yet(scripted_ssm: Script) -> None:
    """SSM reads lag behind: to go on with one's own secret would be the worst of answers."""
    scripted_ssm.answer = lambda request: _refusal(
        "ParameterAlreadyExists" if "PutParameter" in request.headers["X-Amz-Target"] else "ParameterNotFound"
    )
    with pytest.raises(SecretUnavailable, match="does not show it yet"):
        SsmSecretStore().create_once(NAME, lambda: VALUE)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (_refusal("AccessDeniedException", "User: f is not authorized"), SecretMissing, "not permitted to read it"),
        (_refusal("InvalidKeyId", "the key is disabled"), SecretMissing, "InvalidKeyId"),
        (_refusal("ValidationException", "bad name"), SecretMissing, "ValidationException"),
        (_refusal("ThrottlingException", "Rate exceeded"), SecretUnavailable, "ThrottlingException"),
        (Answer(200, b"{", {}, missing=10), SecretUnavailable, "could not read it now"),
    ],
)
def test_a_failure_is_ours_and_leaves_what_is_stored_alone(
    scripted_ssm: Script, answer: Answer, kind: type[SecretError], said: str
) -> None:
    """It is not taken for an absent one, also where that is allowed."""
    scripted_ssm.answer = lambda _: answer
    store = SsmSecretStore()
    with pytest.raises(kind, match=said) as raised:
        store.find(NAME)
    assert NAME in str(raised.value)
    assert raised.value.__cause__ is not None
    assert raised.value.retryable is (kind is SecretUnavailable)


def test_a_store_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is down comes back."""
    with scripted_server(lambda _: Answer()) as server:
        closed = server.url
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", closed)
    with pytest.raises(SecretUnavailable, match="EndpointConnectionError"):
        SsmSecretStore().get(NAME)


def test_a_missing_region_is_an_error_of_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an operator's own machine nothing sets it."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(SecretMissing, match="NoRegionError"):
        SsmSecretStore().get(NAME)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("ValidationException", SecretMissing), ("AccessDeniedException", SecretMissing)],
)
def test_a_secret_that_cannot_be_stored_is_not_logged(scripted_ssm: Script, code: str, kind: type[SecretError]) -> None:
    """Some of AWS's refusals repeat what was sent, and this request holds a secret."""
    text = "not this" if code.startswith("Access") else f"Value '{VALUE}' at 'value' is wrong"
    scripted_ssm.answer = lambda _: _refusal(code, text)
    with pytest.raises(kind, match="write it") as raised:
        SsmSecretStore().put(NAME, VALUE)
    assert VALUE not in _shown(raised.value)
    assert code in str(raised.value)


def test_a_store_does_not_show_its_secrets(ssm: Any) -> None:
    """A repr ends up in logs and tracebacks."""
    store = SsmSecretStore()
    store.put(NAME, VALUE)
    assert VALUE not in repr(store)
