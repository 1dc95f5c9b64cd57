"""What a function reaches outside is reached when it is needed, and not before."""

import boto3
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.pace import Pace
from shepherd_core.wiring import adapters, loops, pace
from shepherd_core.wiring.loops import Function

from agent.shepherd_agent.ed25519 import verify
from tests.support.bmdb.fleet import Fleet
from tests.support.deployment import function_process

KEY = "/shepherd/ssh-key"


@pytest.fixture
def initializer(environment: dict[str, str], aws: None, monkeypatch: pytest.MonkeyPatch) -> Function:
    monkeypatch.setattr(pace, "current", Pace(machine_seconds=30))
    return loops.build("initializer")


def test_without_work_no_ssh_key_is_needed(initializer: Function, fleet: Fleet, deadline: Deadline) -> None:
    """Nor is loaded what speaks SSH, which takes longer than all the rest."""
    initializer.run(deadline, "a test")
    fleet.provided_machine()
    assert len(initializer.plan(deadline)["plan"]) == 1  # type: ignore[arg-type]  # a list, for this function


def test_an_unusable_key_is_held_against_no_machine(initializer: Function, fleet: Fleet, deadline: Deadline) -> None:
    """It is the deployment's fault: the invocation fails, and the machines are as due as before."""
    machine_id = fleet.provided_machine()
    boto3.client("ssm").put_parameter(Name=KEY, Value="hunter2", Type="SecureString")
    with pytest.raises(ConfigError, match="SSH key") as caught:
        initializer.run(deadline, "a test")
    assert "hunter2" not in str(caught.value)
    assert fleet.sql("SELECT event FROM work_history WHERE machine_id = :id ORDER BY 1", id=machine_id) == [
        ["Canceled"],
        ["Started"],
    ]
    assert len(initializer.plan(deadline)["plan"]) == 1  # type: ignore[arg-type]  # a list, for this function


def test_the_keys_for_installations_may_be_missing(aws: None) -> None:
    """A fleet on which nothing is installed needs none; but what is there must be keys."""
    parameter = "/shepherd/installation-key.pub"
    assert adapters.installation_keys(parameter) == ()
    key = ssh_keys.generate()
    function_process.end()
    ssm = boto3.client("ssm")
    ssm.put_parameter(Name=parameter, Value=ssh_keys.public_line(key), Type="String")
    ((public,),) = [adapters.installation_keys(parameter)]
    assert verify(public, ssh_keys.signer(key)(b"a message"), b"a message")
