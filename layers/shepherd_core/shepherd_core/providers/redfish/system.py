"""
A computer system of a BMC: its power and its boot source.

A plain restart must never reinstall the machine: before it, a one-time boot
override that is still set is cleared, and our medium is ejected. A
reinstallation inserts the medium first, because a BMC that refuses it would
leave the machine off; it sets the override only while the machine is off. If
it fails on the way, both are taken back and the machine is switched on again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sushy import exceptions
from sushy.resources.constants import PowerState, ResetType
from sushy.resources.manager.constants import VirtualMediaType
from sushy.resources.system.constants import BootSource, BootSourceOverrideEnabled
from sushy.resources.system.system import System, SystemCollection

from shepherd_core import telemetry
from shepherd_core.domain.errors import (
    NotSupported,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ShepherdError,
    TimeLimitExceeded,
)
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.redfish.bmc import ROOT, UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shepherd_core.domain.clock import Deadline
    from shepherd_core.providers.redfish.bmc import Bmc, BmcOptions

POLL_SECONDS = 1.0
"""The pause between two reads of the power state of a machine that is being switched off."""
PXE = "pxe"
"""The only boot source that is not a URL."""

_DISCS = {VirtualMediaType.CD, VirtualMediaType.DVD}
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

    def __init__(self, bmc: Bmc, path: str, options: BmcOptions, boot_source: str | None, deadline: Deadline) -> None:
        """*boot_source*: ``pxe``, or the URL of an image for the virtual drive."""
        self._bmc = bmc
        self._path = path
        self._options = options
        self._boot_source = boot_source
        self._deadline = deadline
        self._system = System(bmc, path)
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
            ProviderRefused, ProviderUnavailable: something was refused on the way. The machine runs as before, or the
                message says that it is off.
        """
        *first, last = self._steps([])
        target, drive = self._target()
        off, begun = not first, False
        try:
            if drive is not None:
                if drive.inserted:
                    drive.eject_media()
                drive.insert_media(self._boot_source)
            begun = True
            for kind in first:
                self._reset(kind)
                self._system.refresh()
            off = True
            self._system.set_system_boot_options(target=target, enabled=BootSourceOverrideEnabled.ONCE)
            self._reset(last)
        except (exceptions.SushyError, ShepherdError, *UNREADABLE) as error:
            if isinstance(error, exceptions.MissingActionError) and not begun:
                raise NotSupported(f"{self._bmc.name} cannot insert an image for {self._path}") from error
            failure = self._bmc.meaning(error)
            left_off = self._take_back(off=off, switch_on=bool(first))
            if left_off and isinstance(failure, ProviderError):
                raise type(failure)(f"{failure}; the machine is off") from error
            raise failure from error

    def _target(self) -> tuple[BootSource, Any]:
        """Return what to boot from, and the virtual drive for the medium; None: without a medium."""
        target, drive = BootSource.PXE, None
        if self._boot_source != PXE:
            target, drive = BootSource.CD, next(iter(self._drives()), None)
            if drive is None:
                raise NotSupported(f"{self._bmc.name} has no virtual CD or DVD drive for {self._path}")
        if target not in self._system.get_allowed_system_boot_source_values():
            raise NotSupported(f"{self._bmc.name} does not let {self._path} boot from {target.value}")
        return target, drive

    def _take_back(self, *, off: bool, switch_on: bool) -> bool:
        """
        Take back a reinstallation that failed, and switch the machine on again; return whether it may be left off.

        *off*: it had been switched off when the failure came. If it runs all the same, it boots from the source by now
        and is left alone.
        """
        self._bmc.interrupts = False
        try:
            stopped = status(self._bmc, self._path) is ProviderStatus.STOPPED
            if off and not stopped:
                return False
            self._system.refresh(force=True)
            self._boot_as_usual()
            if stopped and switch_on:
                self._system.reset_system(self._offered(ResetType.ON, ResetType.FORCE_ON))
        except (exceptions.SushyError, ShepherdError, *UNREADABLE) as error:
            telemetry.warning("reinstallation not taken back", system=f"{self._bmc.name} {self._path}", error=error)
            return switch_on
        return False

    def _restart(self, kinds: list[ResetType]) -> None:
        steps = self._steps(kinds)
        self._boot_as_usual()
        self._reset(steps[0])
        for kind in steps[1:]:
            try:
                self._reset(kind)
            except (exceptions.SushyError, ProviderError, *UNREADABLE) as error:
                failure = self._bmc.meaning(error)
                raise type(failure)(f"{failure}; the machine is off") from error

    def _boot_as_usual(self) -> None:
        boots = [resource.get("Boot") or {} for resource in (self._system.json, self._pending())]
        once = BootSourceOverrideEnabled.ONCE.value
        if any(
            boot.get("BootSourceOverrideEnabled") == once and boot.get("BootSourceOverrideTarget") != "None"
            for boot in boots
        ):
            self._system.set_system_boot_options(enabled=BootSourceOverrideEnabled.DISABLED)
        if self._boot_source not in {None, PXE}:
            for drive in self._drives():
                if drive.inserted and drive.image == self._boot_source:
                    drive.eject_media()  # the firmware may boot from a medium in the drive without an override

    def _pending(self) -> dict[str, Any]:
        """Return the settings from the next reset on, which some BMCs keep in a separate resource; else empty."""
        settings = self._system.json.get("@Redfish.Settings") or {}
        path = (settings.get("SettingsObject") or {}).get("@odata.id")
        try:
            pending: dict[str, Any] = {} if path is None else self._bmc.get(path).json()
        except exceptions.ResourceNotFoundError:
            return {}
        return pending

    def _steps(self, kinds: list[ResetType]) -> list[ResetType]:
        """Return the resets of a restart: the first of *kinds* that is offered, else off and on; on, if it is off."""
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
        self._bmc.interrupts = True
        self._system.reset_system(kind)
        if kind is ResetType.FORCE_OFF:
            self._wait_until_off()

    def _wait_until_off(self) -> None:
        limit = self._deadline.within(self._options.seconds)
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

    def _drives(self) -> list[Any]:
        """Return the virtual drives for CDs; newer BMCs have them at the system, older ones at its manager."""
        for owner in self._owners():
            try:
                drives = owner.virtual_media.get_members()
            except (exceptions.MissingAttributeError, exceptions.ResourceNotFoundError, exceptions.AccessError):
                continue  # it has none, or we may not use them
            if found := [drive for drive in drives if _DISCS & set(drive.media_types or ())]:
                return found
        return []

    def _owners(self) -> Iterator[Any]:
        yield self._system
        try:
            yield from self._system.managers
        except exceptions.MissingAttributeError:
            return
