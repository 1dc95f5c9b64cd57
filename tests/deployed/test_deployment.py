"""
Deployed as a user does it, Shepherd brings machines up, repairs them, is changed, and goes.

The tests are one story, in this order.
"""

from simulator.account.account import BUCKET, MACHINES, PROVIDER, STACK
from tests.deployed.conftest import PEOPLE, Cloud, Deployment
from tests.support.bmdb.recovery import EARLIER_TICK


def test_machines_come_up_and_report(deployment: Deployment) -> None:
    deployment.eventually(lambda: list(deployment.machines().values()) == ["running"] * MACHINES)


def test_a_second_deployment_changes_nothing(deployment: Deployment) -> None:
    deployment.deploy()
    assert "nothing to change" in deployment.messages


def test_a_machine_that_dies_is_recovered(deployment: Deployment, cloud: Cloud) -> None:
    """Its last heartbeat is set back, and a tick is added from before, without which that might be our own outage."""
    (dead, *_) = cloud.pool.names()
    cloud.pool.hang(dead)
    cloud.sql(EARLIER_TICK.replace("static", PROVIDER))
    this = "WHERE machine_id = (SELECT machine_id FROM machine_provided WHERE provider_id = :dead)"
    cloud.sql(f"UPDATE machine_agent_started SET agent_started_at = now() - interval '1 hour' {this}", dead=dead)
    cloud.sql(
        "UPDATE machine_agent_heartbeat SET first_heartbeat_at = now() - interval '59 minutes', "
        f"agent_heartbeat_at = now() - interval '11 minutes' {this}",
        dead=dead,
    )
    deployment.eventually(lambda: deployment.machines()[dead] != "running")
    deployment.eventually(lambda: cloud.pool.reboots(dead) == 1)
    deployment.eventually(lambda: set(deployment.machines().values()) == {"running"})


def test_a_changed_setting_is_in_force(deployment: Deployment) -> None:
    deployment("settings", "set", "provider.latitude.limit", str(MACHINES + 1), "--yes")
    deployment.eventually(lambda: len(deployment.machines()) == MACHINES + 1)


def update(cloud: Cloud, **parameters: str) -> tuple[str, list[str]]:
    """Update the stack as `sam deploy` does; return its status after that, and the reasons of failures."""
    cloudformation = cloud.client("cloudformation")
    values = {each["ParameterKey"]: each["ParameterValue"] for each in cloud.stack()["Parameters"]} | parameters
    made = cloudformation.create_change_set(
        StackName=STACK,
        ChangeSetName=f"update-{len(reasons(cloud))}",
        UsePreviousTemplate=True,
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()],
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
    )
    cloudformation.get_waiter("change_set_create_complete").wait(ChangeSetName=made["Id"], WaiterConfig={"Delay": 1})
    before = reasons(cloud)
    cloudformation.execute_change_set(ChangeSetName=made["Id"])
    return cloud.stack()["StackStatus"], reasons(cloud)[len(before) :]


def reasons(cloud: Cloud) -> list[str]:
    pages = cloud.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=STACK)
    events = [event for page in pages for event in page["StackEvents"]]
    return [each["ResourceStatusReason"] for each in reversed(events) if each["ResourceStatus"].endswith("FAILED")]


def test_wrong_settings_are_refused_and_rolled_back(deployment: Deployment, cloud: Cloud) -> None:
    """The functions cannot ask CloudFormation, as in a VPC without a way to it."""
    s3 = cloud.client("s3")
    right = s3.get_object(Bucket=BUCKET, Key="settings.toml")["Body"].read()
    s3.put_object(
        Bucket=BUCKET, Key="settings.toml", Body=right.replace(b"[recoverer]", b"[recoverer]\nmax_dead_share = 2")
    )
    status, (reason, *_) = update(cloud, LoopMinutes="1,1,1,2")
    assert status == "UPDATE_ROLLBACK_COMPLETE"
    assert "recoverer.max_dead_share is 2" in reason
    s3.put_object(Bucket=BUCKET, Key="settings.toml", Body=right)
    assert update(cloud, LoopMinutes="1,1,1,2") == ("UPDATE_COMPLETE", [])


def test_no_call_was_denied(deployment: Deployment, cloud: Cloud) -> None:
    """Of a function, or of the administrator who has deployed all this."""
    assert [line for line in cloud.log.read_text().splitlines() if line.startswith("DENIED")] == []
    assert deployment("status", "-o", "json")


def test_people_may_do_what_is_theirs(deployment: Deployment) -> None:
    """The emulator reads our policies in its own way."""
    reader, operator = deployment.by("reader"), deployment.by("operator")
    pause = ("pause", "--loop", "provisioner", "--reason", "a test")
    assert reader("machine", "list", "-o", "json")
    assert reader("logs", next(iter(deployment.machines())), "-o", "json")
    reader(*pause, status=1)
    assert f"on /{STACK}/bmdb-password-operator" in reader.messages
    assert operator(*pause, "-o", "json")
    assert operator("reconcile", "-o", "json")
    operator("ssh-key", "rotate", "--yes", status=1)
    assert f"on /{STACK}/ssh-key" in operator.messages


def left(cloud: Cloud) -> list[str]:
    """
    Return what is there that carries the stack's name, apart from the secrets and the bucket.

    Log groups are not looked at: the emulator makes them again for an invocation that ends after their deletion.
    """

    def names(service: str, operation: str, result: str, name: str) -> list[str]:
        pages = cloud.client(service).get_paginator(operation).paginate()
        return [each if isinstance(each, str) else each[name] for page in pages for each in page.get(result, [])]

    found = [
        *names("lambda", "list_functions", "Functions", "FunctionName"),
        *names("lambda", "list_layers", "Layers", "LayerName"),
        *names("iam", "list_roles", "Roles", "RoleName"),
        *names("iam", "list_policies", "Policies", "PolicyName"),
        *names("scheduler", "list_schedules", "Schedules", "Name"),
        *names("scheduler", "list_schedule_groups", "ScheduleGroups", "Name"),
        *names("sqs", "list_queues", "QueueUrls", ""),
        *names("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
        *names("cloudformation", "list_exports", "Exports", "Name"),
    ]
    return [name for name in found if STACK in name and not name.startswith("people-")]


def test_the_end_leaves_what_is_the_operators(deployment: Deployment, cloud: Cloud) -> None:
    assert left(cloud)
    deployment("destroy", str(deployment.document), "--yes")
    assert left(cloud) == []
    assert [each["StackName"] for each in cloud.client("cloudformation").describe_stacks()["Stacks"]] == [PEOPLE]
