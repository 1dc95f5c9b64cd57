import re
from pathlib import Path

import pytest

from shepherdctl.deployment.answers import read
from shepherdctl.deployment.machine_lists import LISTS, credentials
from shepherdctl.deployment.template import parameters
from simulator.account.account import ADDRESS, ARCHITECTURE
from tests.deployed.conftest import ROOT, Cloud, Operator
from tests.support.deployment.examples import EXAMPLES, filled_in


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_is_deployed_when_it_is_filled_in(folder: Path, cloud: Cloud, tmp_path: Path) -> None:
    """With our database, which knows no IAM and has users, and without ticks, which would ask real providers."""
    files = filled_in(folder)
    own = {"stack": "example", "bmdb_host": ADDRESS, "bmdb_login": "passwords"}
    own |= {"loop_minutes": "0,0,0,0", "architecture": ARCHITECTURE}
    text = re.sub(rf"^({'|'.join(own)}) = .*\n", "", files["shepherd.toml"], flags=re.MULTILINE)
    lines = "".join(f'{key} = "{value}"\n' for key, value in own.items())
    text = text.replace("[deployment]\n", f"[deployment]\n{lines}")
    text = text.replace("[bmdb]\n", f"[bmdb]\nbmdb_port = {cloud.bmdb.port}\n")
    text = re.sub(r'^"(.+\.pem)" = ".*"', r'"\1" = "\1"', text, flags=re.MULTILINE)
    answers = read(text.encode(), parameters())
    for name in answers.documents:
        content = files.get(name) or cloud.ca.read_text()
        (tmp_path / name).write_text(content.replace('"/shepherd/', '"/example/'))
    listed = credentials(folder.name, (tmp_path / "machines.json").read_bytes()) if folder.name in LISTS else []
    for name in {*listed, *map(answers.parameter, answers.needed_secrets)}:
        secret = cloud.password if name == answers.parameter("bmdb-password") else "user:password"
        cloud.client("ssm").put_parameter(Name=name, Value=secret, Type="SecureString", Overwrite=True)
    operator = Operator(cloud, tmp_path / "shepherd.toml")
    operator.document.write_text(text)
    operator.deploy()
    operator.deploy()
    assert "nothing to change" in operator.messages
    operator("destroy", str(operator.document), "--yes")


def test_the_database_and_its_network_are_made(cloud: Cloud) -> None:
    """
    As far as the emulator goes: records of them, and a PostgreSQL only where it finds Docker.

    CloudFormation has no NAT gateway there, so that it is the network with endpoints.
    """
    name, cloudformation = "database", cloud.client("cloudformation")
    cloud.client("ssm").put_parameter(
        Name="/shepherd/bmdb-password", Value=cloud.password, Type="SecureString", Overwrite=True
    )
    given = {"Internet": "endpoints", "Operators": "203.0.113.7/32"}
    cloudformation.create_stack(
        StackName=name,
        TemplateBody=(ROOT / "templates" / "database.yaml").read_text(encoding="utf-8"),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
    )
    cloudformation.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    (stack,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    (database,) = cloud.client("rds").describe_db_instances()["DBInstances"]
    assert (database["Endpoint"]["Address"], database["DbiResourceId"]) == (outputs["BmdbHost"], outputs["BmdbLogin"])
    facts = (database["MasterUsername"], database["DBName"], database["StorageEncrypted"])
    assert facts == ("shepherd", "shepherd", True)
    asked = parameters()
    for key, value in outputs.items():
        assert re.fullmatch(asked[key].pattern, value), outputs
