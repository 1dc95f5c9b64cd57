"""The deployment of a simulated environment: the secrets and files that an operator stores first, and the functions."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.remediation import USUAL_TIMEOUTS
from shepherd_core.settings.functions.loops import RecovererSettings
from shepherd_core.settings.functions.specs import ROLES

from simulator.environment.aws import REGION
from simulator.environment.machine_source import SSH_KEY_PARAMETER
from simulator.lambda_.service import FunctionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from simulator.environment.aws import Aws
    from simulator.environment.environment import Environment

HEARTBEAT_INTERVAL = "SHEPHERD_HEARTBEAT_INTERVAL_SECONDS"
"""The variable of the agent API with the real seconds between two heartbeats."""

_BUCKET = "shepherd"
_CA = f"s3://{_BUCKET}/ca.pem"
_BMDB_PASSWORD = "/simulated/bmdb-password"  # noqa: S105 - its name
_INSTALLATION_KEY, _INSTALLATION_PUBLIC_KEY = "/shepherd/installation-key", "/shepherd/installation-key.pub"


def store(aws: Aws, secrets: Mapping[str, str], bmdb_password: str | None, ca: Path) -> None:
    """
    Store what an operator stores before a deployment.

    *secrets* are those of the provider, by parameter; *bmdb_password* is that of every role; None: the BMDB needs
    none. *ca* is the file with the CA of all servers.
    """
    stored = dict(secrets)
    if bmdb_password is not None:
        stored |= dict.fromkeys([_BMDB_PASSWORD, *(f"{_BMDB_PASSWORD}-{role}" for role in ROLES)], bmdb_password)
    stored[_INSTALLATION_KEY] = ssh_keys.generate()
    stored[_INSTALLATION_PUBLIC_KEY] = ssh_keys.public_line(stored[_INSTALLATION_KEY])
    ssm = aws.client("ssm")
    for name, secret in stored.items():
        ssm.put_parameter(Name=name, Value=secret, Type="SecureString")
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=_BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.upload_file(str(ca), _BUCKET, "ca.pem")


def broken_agent(folder: Path) -> Mapping[str, str]:
    """Write an agent that ends with an error, and return the Initializer's settings with it."""
    agent = folder / "broken-agent"
    agent.write_text("#!/bin/sh\necho cannot read /etc/shepherd.conf >&2\nexit 7\n", encoding="utf-8")
    digest = hashlib.sha256(agent.read_bytes()).hexdigest()
    return {"SHEPHERD_AGENT_SOURCE": str(agent), "SHEPHERD_AGENT_SHA256": digest}


def _pace(scaled: Callable[[float], float]) -> Pace:
    """Return the usual pace in fleet time, apart from the times that real machines and sessions take here too."""
    usual = Pace()
    faster: dict[str, Any] = {
        name: scaled(getattr(usual, name))
        for name in (
            "start_backoff_seconds", "start_backoff_maximum_seconds", "step_backoff_seconds",
            "step_backoff_maximum_seconds", "reset_after_seconds", "penalty_seconds", "update_seconds",
            "report_seconds",
        )
    }  # fmt: skip
    return replace(usual, machine_seconds=20, look_seconds=5, **faster)


def _policy(scaled: Callable[[float], float]) -> str:
    """Return the usual policy in fleet time, whose steps have times in whole seconds."""
    times = {name: round(scaled(seconds)) for name, seconds in asdict(USUAL_TIMEOUTS).items()}
    own = "".join(f":{name.replace('_', '-')}={seconds}" for name, seconds in times.items())
    *steps, last = RecovererSettings.model_fields["remediation_policy"].default.split(",")
    return ",".join([*(f"{step}{own}" for step in steps), last])


def functions(environment: Environment, aws: Mapping[str, str]) -> Mapping[str, FunctionConfig]:
    """Return the functions of *environment* with the default settings, scaled to fleet time, and access to *aws*."""
    bmdb, remote, scaled = environment.bmdb_settings, environment.settings.remote, environment.scaled
    if remote is not None:
        place = {"bmdb_host": remote, "bmdb_port": environment.proxy.port, "bmdb_ca_source": _CA}
        bmdb = bmdb.model_copy(update=place)
    pace = _pace(scaled)
    common = {
        **aws,
        "TMPDIR": str(environment.folder),
        **environment.machine_source.environment,
        "SHEPHERD_BMDB_HOST": bmdb.bmdb_host,
        "SHEPHERD_BMDB_PORT": str(bmdb.bmdb_port),
        "SHEPHERD_BMDB_NAME": bmdb.bmdb_name,
        "SHEPHERD_BMDB_USER": bmdb.bmdb_user,
        "SHEPHERD_BMDB_ROLES": bmdb.bmdb_roles or "",
        "SHEPHERD_BMDB_PASSWORD_PARAMETER": "" if remote is None else _BMDB_PASSWORD,
        "SHEPHERD_BMDB_CA_SOURCE": bmdb.bmdb_ca_source or "",
        "SHEPHERD_SSH_KEY_PARAMETER": SSH_KEY_PARAMETER,
        "SHEPHERD_INSTALLATION_PUBLIC_KEY_PARAMETER": _INSTALLATION_PUBLIC_KEY,
    }
    return {
        "migrator": FunctionConfig(common, timeout_seconds=60),
        # High enough never to throttle: agents that are throttled wait longer, and become unhealthy in the end.
        "agent_api": FunctionConfig(
            {
                **common,
                HEARTBEAT_INTERVAL: str(environment.interval_seconds),
            },
            timeout_seconds=10,
            concurrency=8,
            pace=pace,
        ),
        "provisioner": FunctionConfig(
            {
                **common,
                "SHEPHERD_MAX_MACHINES": "0",
                "SHEPHERD_CREATION_SECONDS": str(scaled(5)),
                "SHEPHERD_BOOT_SECONDS": str(scaled(300)),
            },
            timeout_seconds=90,
            pace=pace,
        ),
        "initializer": FunctionConfig(
            {
                **common,
                "SHEPHERD_AGENT_ENDPOINT": environment.endpoint.url,
                "SHEPHERD_AGENT_CA_SOURCE": _CA,
                "SHEPHERD_SSH_PORT": str(environment.pool.port),
            },
            timeout_seconds=60,
            pace=pace,
        ),
        "updater": FunctionConfig(common, timeout_seconds=60, pace=pace),
        "recoverer": FunctionConfig(
            {
                **common,
                "SHEPHERD_SSH_PORT": str(environment.pool.port),
                "SHEPHERD_STARTUP_TIMEOUT_SECONDS": str(scaled(1800)),
                "SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS": str(scaled(600)),
                "SHEPHERD_REMEDIATION_POLICY": _policy(scaled),
            },
            timeout_seconds=60,
            pace=pace,
        ),
    }
