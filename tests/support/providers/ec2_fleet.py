"""A fleet of EC2 instances that Shepherd manages, for operators to repair."""

from uuid import UUID

from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.loops.provisioner import Provisioner, RateLimits
from shepherd_core.providers.ec2.adapter import Ec2Provider
from shepherd_core.rules.provisioning import PlanLimits
from shepherd_core.settings.base import variable
from shepherd_core.settings.providers.ec2 import Ec2Settings

from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.providers.ec2_api import FLEET, IMAGE, Ec2Api, subnets

_OUR_LINE = ssh_keys.public_line(ssh_keys.generate())


def ec2_settings() -> Ec2Settings:
    """Return how to reach a fleet of six instances at most."""
    return Ec2Settings(fleet=FLEET, limit=6, subnets=",".join(subnets()), image=IMAGE, machine_type="m5.metal")


def environment(settings: Ec2Settings) -> dict[str, str]:
    named = {variable(Ec2Settings, name): str(value) for name, value in settings.model_dump(exclude_unset=True).items()}
    return {"SHEPHERD_PROVIDER": "ec2", **named}


def three_machines(fleet: Fleet, settings: Ec2Settings) -> dict[str, UUID]:
    """Return the ids of three machines that were created an hour ago, by provider id."""
    provider = Ec2Provider(settings, lambda: _OUR_LINE, SystemClock())
    limits = PlanLimits(max_machines=3, chunk=9, drift_limit=0, assimilate=False, abandon_seconds=HOUR)
    pace = RateLimits(session_seconds=60, creation_seconds=0, penalty_seconds=HOUR)
    Provisioner(provider, fleet.connection, SystemClock(), limits, pace).run(Deadline(SystemClock(), 600), "a test")
    fleet.pass_time(HOUR)
    return provided(fleet)


def create(settings: Ec2Settings, token: UUID) -> str:
    provider = Ec2Provider(settings, lambda: _OUR_LINE, SystemClock())
    deadline = Deadline(SystemClock(), 60)
    capacity = next(each for each in provider.list_machines(deadline) if each.availability == "KnownUnused")
    return provider.create_machine(capacity, token, deadline).provider_id


def end(api: Ec2Api, name: str) -> None:
    api.set_state(name, "terminated", "Client.UserInitiatedShutdown")


def living(api: Ec2Api) -> set[str]:
    return {found.id for found in api.instances() if found._state.name not in ("terminated", "shutting-down")}
