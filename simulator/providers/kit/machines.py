"""The machines behind a simulated API: what changes, when, and what happens to the hardware."""

import random
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.timers import Timers


class RequestRefused(Exception):
    """The answer is an error with this HTTP status and these messages, and nothing has changed."""

    def __init__(self, status: int, *messages: str) -> None:
        self.status = status
        self.messages = messages
        super().__init__(f"{status}: {'; '.join(messages)}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Durations and limits of a simulated API."""

    provision_seconds: float = 0.0
    """From creation until the machine is active; the same again for a reinstall."""
    action_seconds: float = 0.0
    """From a reboot or power action until it takes effect."""
    per_page_cap: int = 100
    """The most entries that a page has, whatever the client asks for."""
    seed: int = 0
    """The same seed makes the same ids."""


@dataclass(frozen=True, kw_only=True)
class States:
    """The names that an API has for the states of its machines."""

    queued: str = "queued"
    provisioning: str = "provisioning"
    active: str = "active"
    stopping: str = "powering_off"
    stopped: str = "inactive"
    starting: str = "powering_on"
    reinstalling: str = "reinstalling"
    deprovisioning: str = "deprovisioning"
    failed: str = "failed"


@dataclass(kw_only=True)
class FakeMachine:
    """A machine; an API may have a class of its own with more fields."""

    id: str
    state: str = ""
    name: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    """The fields of the request that created it."""
    authorized_key: str = ""
    """The lines that its root user accepts."""
    address: str | None = None
    """None until provisioning has begun."""
    racked: bool = False
    """Whether it has hardware."""
    actions_taken: list[str] = field(default_factory=list)
    generation: int = 0
    """Counts changes of state; delayed actions of an older generation are not carried out."""


M = TypeVar("M", bound=FakeMachine)


class FakeMachines(Generic[M]):
    """
    The machines of one API: created, switched, reinstalled and deleted, each with the delay of the options.

    Hold ``lock`` to read or change it. Hardware is called on the timers'
    thread, without the lock.
    """

    def __init__(self, hardware: Hardware, options: Options, states: States) -> None:
        self.lock = threading.RLock()
        self.timers = Timers()
        self.hardware = hardware
        self.options = options
        self.states = states
        self.all: dict[str, M] = {}
        """By id, oldest first."""
        self._random = random.Random(options.seed)
        self._queue_seconds = options.provision_seconds / 10  # until it gets an address
        self._allowed: Mapping[str, tuple[str, ...]] = {
            "reboot": (states.active,),
            "power_off": (states.active,),
            "power_on": (states.stopped,),
            "reinstall": (states.active, states.stopped),
        }

    def new_id(self) -> str:
        """Return a new UUID; a seed determines the sequence."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def add(self, machine: M) -> None:
        """Add a machine that is queued, and begin to provision it."""
        self.put(machine)
        self.change(machine, self.states.queued)
        self.later(self._queue_seconds, machine, self._provision)

    def add_active(self, machine: M) -> None:
        """Add a machine that is active already, with hardware unless it has an address."""
        self.put(machine)
        if machine.address is None:
            machine.address = self.hardware.rack(machine.id, machine.authorized_key, 0)
            machine.racked = True
        self.racked(machine)
        self.change(machine, self.states.active)

    def act(self, machine: M, action: str) -> None:
        """
        Begin to ``reboot``, ``power_off``, ``power_on`` or ``reinstall`` a machine; it takes effect later.

        Raises:
            RequestRefused: the state of the machine does not allow it.
        """
        if machine.state not in self._allowed[action]:
            raise self.objection(machine, action)
        machine.actions_taken.append(action)
        match action:
            case "reboot":
                self.hardware_later(machine, self.hardware.reboot, then=None)
            case "power_off":
                self.change(machine, self.states.stopping)
                self.hardware_later(machine, self.hardware.power_off, then=self.states.stopped)
            case "power_on":
                self.change(machine, self.states.starting)
                self.hardware_later(machine, self.hardware.power_on, then=self.states.active)
            case "reinstall":
                self.change(machine, self.states.reinstalling)
                self.hardware_later(machine, self.hardware.reinstall, then=None)
                self.later(self.options.action_seconds + self.options.provision_seconds, machine, self._activate)

    def delete(self, machine: M) -> None:
        """Begin to delete a machine."""
        self.change(machine, self.states.deprovisioning)
        self._remove_hardware(machine)
        self.later(0, machine, self.drop)

    def forget(self, machine: M) -> None:
        """Make a machine vanish without a trace."""
        machine.generation += 1
        self.drop(machine)
        self._remove_hardware(machine)

    def fail(self, machine: M) -> None:
        """Make a machine fail; its hardware is switched off."""
        self.change(machine, self.states.failed)

        def run() -> None:
            if machine.racked:
                self.hardware.power_off(machine.id)

        self.timers.after(0, run)

    def change(self, machine: M, state: str) -> None:
        """Set the state, and drop the delayed actions of the old one."""
        machine.state = state
        machine.generation += 1

    def later(self, seconds: float, machine: M, step: Callable[[M], object]) -> None:
        """Run *step* under the lock in *seconds*, unless the state of the machine has changed by then."""
        generation = machine.generation

        def run() -> None:
            with self.lock:
                if machine.generation == generation:
                    step(machine)

        self.timers.after(seconds, run)

    def hardware_later(self, machine: M, method: Callable[[str], None], then: str | None) -> None:
        """Call the hardware after the delay, outside the lock; then put the machine into state *then*."""
        generation = machine.generation

        def run() -> None:
            with self.lock:
                wanted = machine.generation == generation
            if wanted and machine.racked:
                method(machine.id)
            with self.lock:
                if then is not None and machine.generation == generation:
                    self.change(machine, then)

        self.timers.after(self.options.action_seconds, run)

    # An API may override the following methods.

    def put(self, machine: M) -> None:
        """Store a machine."""
        self.all[machine.id] = machine

    def drop(self, machine: M) -> None:
        """Remove a machine."""
        del self.all[machine.id]

    def racked(self, machine: M) -> None:
        """Note that a machine has got its address."""

    def objection(self, machine: M, action: str) -> RequestRefused:
        """Return the answer to an action that the state of a machine does not allow."""
        return RequestRefused(409, f"cannot {action} a machine that is {machine.state}")

    def _provision(self, machine: M) -> None:
        self.change(machine, self.states.provisioning)
        generation = machine.generation
        left = max(0.0, self.options.provision_seconds - self._queue_seconds)

        def rack() -> None:
            if machine.generation != generation:
                return
            try:
                address = self.hardware.rack(machine.id, machine.authorized_key, left)
            except Exception:
                with self.lock:
                    if machine.generation == generation:
                        self.change(machine, self.states.failed)
                raise
            with self.lock:
                machine.racked = True
                machine.address = address
                self.racked(machine)

        self.timers.after(0, rack)
        self.later(left, machine, self._activate)

    def _activate(self, machine: M) -> None:
        self.change(machine, self.states.active)

    def _remove_hardware(self, machine: M) -> None:
        def run() -> None:
            if machine.racked:
                machine.racked = False
                self.hardware.remove(machine.id)

        self.timers.after(0, run)
