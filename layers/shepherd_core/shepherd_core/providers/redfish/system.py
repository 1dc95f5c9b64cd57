"""
A computer system of a BMC: its power, and its reinstallation.

A plain restart must never reinstall the machine: before it, the system is made
to boot as usual (``boot``). A reinstallation inserts the medium first, because
a BMC that refuses it would leave the machine off; it sets the boot override
only while the machine is off. If it fails on the way, both are taken back and
the machine is switched on again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sushy import exceptions
from sushy.resources.constants import PowerState, ResetType
from sushy.resources.system.constants import BootSourceOverrideEnabled
from sushy.resources.system.system import System, SystemCollection

from shepherd_core import telemetry
from shepherd_core.domain.errors import ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.redfish.boot import Boot
from shepherd_core.providers.redfish.transport import ROOT

if TYPE_CHECKING:
    from shepherd_core.domain.clock import Permission
    from shepherd_core.providers.redfish.bmc import Bmc, BmcOptions

POLL_SECONDS = 1.0
"""The pause between two reads of the power state of a machine that is being switched off or on."""
SWITCHING_ON_SECONDS = 20.0
"""The time for switching a machine on; at most a quarter of the time that is left is reserved for it."""
SWITCHING_ON_TRIES = 3
"""The number of requests to switch on a machine that was switched off."""

_STATUS = {"On": ProviderStatus.RUNNING, "Off": ProviderStatus.STOPPED}


def path_of_the_only(bmc: Bmc) -> str:
    """
    Return the path of the only system of *bmc*.

    Raises:
        ProviderRefused: it has none, or several.
    """
    collection = SystemCollection(bmc, bmc.get(ROOT).json()["Systems"]["@odata.id"])
    paths = collection.members_identities
    if len(paths) != 1:
        raise ProviderRefused(f"{bmc.asked}: {len(paths)} systems; the entry in the list must name its System")
    return str(paths[0])


def status(bmc: Bmc, path: str) -> ProviderStatus:
    """Return the power state of the system at *path*; states other than ``On`` and ``Off`` are unknown."""
    state = bmc.get(path).json().get("PowerState")
    return _STATUS.get(state, ProviderStatus.UNKNOWN) if isinstance(state, str) else ProviderStatus.UNKNOWN


class ComputerSystem:
    """The system at *path* of *bmc*, in its state when this object was created."""

    def __init__(
        self, bmc: Bmc, path: str, options: BmcOptions, boot_source: str | None, permission: Permission
    ) -> None:
        """*boot_source*: ``pxe``, or the URL of an image for the virtual drive."""
        self._bmc = bmc
        self._path = path
        self._options = options
        self._permission = permission
        self._system = System(bmc, path)
        self._boot = Boot(bmc, self._system, boot_source)
        try:
            self._allowed = self._system.get_allowed_reset_system_values()
        except exceptions.MissingActionError as error:
            raise NotSupported(f"{bmc.name} cannot reset {path}") from error
        if bmc.broken is not None:
            raise bmc.broken  # sushy ignores a failure to read the boot settings or the offered resets

    def reboot(self, *, graceful: bool) -> None:
        """
        Restart it, by its operating system if *graceful* and the BMC can, else at once; switch it on if it is off.

        Raises:
            NotSupported: the BMC offers no reset for that; nothing was done.
        """
        kinds = [ResetType.FORCE_RESTART, ResetType.POWER_CYCLE]
        self._restart([ResetType.GRACEFUL_RESTART, *kinds] if graceful else kinds)

    def power_cycle(self) -> None:
        """
        Switch it off and on. If the process is killed in between, the next restart of any kind switches it on.

        Raises:
            NotSupported: the BMC offers no reset for that; nothing was done.
        """
        self._restart([ResetType.POWER_CYCLE])

    def reinstall(self) -> None:
        """
        Boot it once from the boot source.

        If the process is killed meanwhile, the machine is off, or boots from the source, or runs as before with the
        medium in the drive; the next restart by Shepherd ejects it.

        Raises:
            NotSupported: the BMC cannot switch it off and on, or cannot boot it from there; nothing was done.
            ShepherdError: something was refused on the way, or took too long. The machine runs as before, or the
                message says that it is, or may be, off.
        """
        *first, last = self._steps([])
        target, drive = self._boot.source()
        off = not first
        try:
            with self._bmc.reserving(SWITCHING_ON_SECONDS):
                if drive is not None:
                    self._boot.insert(drive)
                for kind in first:
                    self._reset(kind)
                    self._system.refresh()
                off = True
                self._system.set_system_boot_options(target=target, enabled=BootSourceOverrideEnabled.ONCE)
                self._reset(last)
        except NotSupported:
            raise  # the drive takes no image
        except Exception as error:
            state = self._take_back(off=off, switch_on=bool(first))
            raise (self._off(error, state) if state else self._bmc.meaning(error)) from error

    def _take_back(self, *, off: bool, switch_on: bool) -> str:
        """
        Take back a reinstallation that failed, and switch the machine on again; return how it is left unless it runs.

        *off*: it had been switched off when the failure came. If it runs all the same, it boots from the source by now
        and is left alone.
        """
        self._bmc.permission = None
        state = "may be off" if switch_on and self._permission.interrupted else ""
        try:
            stopped = status(self._bmc, self._path) is ProviderStatus.STOPPED
            if off and not stopped:
                return ""
            if stopped and switch_on:
                state = "is off"
            self._system.refresh(force=True)
            self._boot.as_usual()
            if stopped and switch_on:
                self._system.reset_system(self._offered(ResetType.ON, ResetType.FORCE_ON))
                state = ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller has another one to raise
            telemetry.warning("reinstallation not taken back", system=f"{self._bmc.name} {self._path}", error=error)
        return state

    def _restart(self, kinds: list[ResetType]) -> None:
        first, *then = self._steps(kinds)
        self._boot.as_usual()
        try:
            with self._bmc.reserving(SWITCHING_ON_SECONDS if then else 0):
                self._reset(first)
        except Exception as error:
            if not (then and self._permission.interrupted):
                raise
            if not self._is_off():
                raise self._off(error, "may be off") from error
        for kind in then:
            self._switch_on(kind)

    def _switch_on(self, kind: ResetType) -> None:
        """Switch it on; try again while there is time, because that changes no machine that is on."""
        for left in reversed(range(SWITCHING_ON_TRIES)):
            try:
                return self._reset(kind)
            except Exception as error:
                again = left and not isinstance(error, SessionExpired)
                if not again or self._permission.deadline.remaining() <= POLL_SECONDS:
                    raise self._off(error) from error
            self._options.clock.sleep(POLL_SECONDS)
        raise AssertionError  # the last try returns or raises

    def _is_off(self) -> bool:
        try:
            return status(self._bmc, self._path) is ProviderStatus.STOPPED
        except Exception:  # noqa: BLE001 - the caller has another one to raise
            return False

    def _off(self, error: Exception, state: str = "is off") -> ShepherdError:
        """Return Shepherd's error for *error*, which left the machine off."""
        failure = self._bmc.meaning(error)
        failure.args = (f"{failure}; the machine {state}",)
        return failure

    def _steps(self, kinds: list[ResetType]) -> list[ResetType]:
        """Return the resets of a restart: the first of *kinds* that is offered, else off and on; if off, only on."""
        on = (ResetType.ON, ResetType.FORCE_ON)
        if self._system.power_state is PowerState.OFF:
            return [self._offered(*on)]
        return [kind for kind in kinds if kind in self._allowed][:1] or [
            self._offered(ResetType.FORCE_OFF),
            self._offered(*on),
        ]

    def _offered(self, *kinds: ResetType) -> ResetType:
        for kind in kinds:
            if kind in self._allowed:
                return kind
        offered = ", ".join(sorted(kind.value for kind in self._allowed))
        wanted = " or ".join(kind.value for kind in kinds)
        raise NotSupported(f"{self._bmc.name} offers no {wanted} for {self._path}, only {offered}")

    def _reset(self, kind: ResetType) -> None:
        self._bmc.permission = self._permission
        self._system.reset_system(kind)
        if kind is ResetType.FORCE_OFF:
            self._wait_until_off()
        else:
            self._see_it_on(kind)

    def _see_it_on(self, kind: ResetType) -> None:
        """Look again for some seconds: a BMC may accept a reset and leave the machine off."""
        limit = self._permission.deadline.within(SWITCHING_ON_SECONDS)
        while self._is_off():
            if limit.remaining() <= POLL_SECONDS:
                message = f"{kind.value} was accepted, but the machine is still reported to be off"
                raise ProviderUnavailable(f"{self._bmc.asked}: {message}")
            self._options.clock.sleep(POLL_SECONDS)

    def _wait_until_off(self) -> None:
        limit = self._permission.deadline.within(self._options.seconds)
        passed: ShepherdError | None = None
        while True:
            try:
                if status(self._bmc, self._path) is ProviderStatus.STOPPED:
                    return
            except exceptions.HTTPError as error:
                passed = self._bmc.failure(error)  # a BMC may be busy with the power
                if not passed.retryable:
                    raise
            except (ProviderUnavailable, TimeLimitExceeded) as error:
                passed = error
            if limit.remaining() <= POLL_SECONDS:
                break
            self._options.clock.sleep(POLL_SECONDS)
        message = f"{self._bmc.asked}: ForceOff was accepted, but the machine is not reported to be off"
        raise ProviderUnavailable(message) from passed
