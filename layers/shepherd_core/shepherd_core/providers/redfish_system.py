"""
One computer system of a BMC: its power, and what it boots from.

A plain restart must never reinstall the machine: a one-time boot override that
is still set, and our medium in its drive, are taken back before one. A
reinstallation sets both only while the machine is off: whenever it is switched
on then, by whomever, nothing has run on it that could be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sushy import exceptions
from sushy.resources.constants import PowerState, ResetType
from sushy.resources.manager.constants import VirtualMediaType
from sushy.resources.system.constants import BootSource, BootSourceOverrideEnabled
from sushy.resources.system.system import System, SystemCollection

from shepherd_core.errors import ProviderRefused, ProviderUnavailable, ShepherdError, TimeLimitExceeded
from shepherd_core.machine import ProviderStatus
from shepherd_core.providers.redfish_bmc import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shepherd_core.clock import Deadline
    from shepherd_core.providers.redfish_bmc import Bmc, Way

POLL_SECONDS = 1.0
"""The pause between two looks at whether a machine has gone off."""
PXE = "pxe"
"""The boot source that is not a URL."""

_DISCS = {VirtualMediaType.CD, VirtualMediaType.DVD}
_STATUS = {"On": ProviderStatus.RUNNING, "Off": ProviderStatus.STOPPED}


def path_of_the_only(bmc: Bmc) -> str:
    """
    Return the path of the one system that *bmc* has.

    Raises:
        ProviderRefused: it has none, or several.
    """
    collection = SystemCollection(bmc, bmc.get(ROOT).json()["Systems"]["@odata.id"])
    paths = collection.members_identities
    if len(paths) != 1:
        raise ProviderRefused(f"{bmc.asked}: {len(paths)} systems; the entry in the list must name its System")
    return str(paths[0])


def status(bmc: Bmc, path: str) -> ProviderStatus:
    """Return whether the system at *path* is on; whatever is neither ``On`` nor ``Off`` is unknown."""
    state = bmc.get(path).json().get("PowerState")
    return _STATUS.get(state, ProviderStatus.UNKNOWN) if isinstance(state, str) else ProviderStatus.UNKNOWN


class ComputerSystem:
    """The system at *path* of *bmc*, as it was when this was made."""

    def __init__(self, bmc: Bmc, path: str, way: Way, boot_source: str | None, deadline: Deadline) -> None:
        """*boot_source*: ``pxe``, or the URL of an image for the virtual drive."""
        self._bmc = bmc
        self._path = path
        self._way = way
        self._boot_source = boot_source
        self._deadline = deadline
        self._system = System(bmc, path)
        if bmc.broken is not None:
            raise bmc.broken  # sushy goes on without boot settings that it could not read
        self._allowed = self._system.get_allowed_reset_system_values()

    def reboot(self, *, graceful: bool) -> None:
        """Restart it, at once or, if *graceful* and the BMC can, by its operating system; switch it on if it is off."""
        self._boot_as_usual()
        kinds = [ResetType.FORCE_RESTART, ResetType.POWER_CYCLE]
        self._restart([ResetType.GRACEFUL_RESTART, *kinds] if graceful else kinds)

    def power_cycle(self) -> None:
        """Cut the power and give it back. If this dies in between, the next restart of any kind switches it on."""
        self._boot_as_usual()
        self._restart([ResetType.POWER_CYCLE])

    def reinstall(self) -> None:
        """
        Boot it from the boot source, this once; whatever can be refused is looked at before the power is cut.

        If this dies on the way, the machine is off, or reinstalls at once.
        """
        drive = None
        target = BootSource.PXE
        if self._boot_source != PXE:
            target = BootSource.CD
            drive = next(iter(self._drives()), None)
            if drive is None:
                raise ProviderRefused(f"the BMC of {self._path} has no virtual CD or DVD drive for the image")
        if target not in self._system.get_allowed_system_boot_source_values():
            raise ProviderRefused(f"the BMC of {self._path} does not let it boot from {target.value}")
        if self._system.power_state is not PowerState.OFF:
            self._switch_off()
            self._system.refresh()
        if drive is not None:
            if drive.inserted:
                drive.eject_media()
            drive.insert_media(self._boot_source)
        self._system.set_system_boot_options(target=target, enabled=BootSourceOverrideEnabled.ONCE)
        self._switch_on()

    def _boot_as_usual(self) -> None:
        boot = self._system.boot
        if boot is not None and boot.enabled is BootSourceOverrideEnabled.ONCE and boot.target is not BootSource.NONE:
            self._system.set_system_boot_options(enabled=BootSourceOverrideEnabled.DISABLED)
        if self._boot_source not in {None, PXE}:
            for drive in self._drives():
                if drive.inserted and drive.image == self._boot_source:
                    drive.eject_media()  # a firmware may boot from whatever is in the drive

    def _restart(self, kinds: list[ResetType]) -> None:
        """Restart it by the first of *kinds* that the BMC offers, else by switching it off and on; on, if it is off."""
        if self._system.power_state is PowerState.OFF:
            self._switch_on()
            return
        offered = [kind for kind in kinds if kind in self._allowed]
        if offered:
            self._system.reset_system(offered[0])
        else:
            self._switch_off()
            self._switch_on()

    def _switch_off(self) -> None:
        """Switch it off, at once, and wait until it is."""
        self._offered(ResetType.ON, ResetType.FORCE_ON)  # or it would stay off
        self._system.reset_system(self._offered(ResetType.FORCE_OFF))
        limit = self._deadline.within(self._way.seconds)
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
            self._way.clock.sleep(POLL_SECONDS)
        message = f"{self._bmc.asked}: ForceOff was accepted, but the machine is not reported to be off"
        raise ProviderUnavailable(message) from passed

    def _switch_on(self) -> None:
        self._system.reset_system(self._offered(ResetType.ON, ResetType.FORCE_ON))

    def _offered(self, *kinds: ResetType) -> ResetType:
        for kind in kinds:
            if kind in self._allowed:
                return kind
        offered = ", ".join(sorted(kind.value for kind in self._allowed))
        wanted = " or ".join(kind.value for kind in kinds)
        raise ProviderRefused(f"the BMC of {self._path} offers no {wanted}, only {offered}")

    def _drives(self) -> list[Any]:
        """Return the virtual drives for CDs; newer BMCs have them at the system, older ones at its manager."""
        for owner in self._owners():
            try:
                drives = owner.virtual_media.get_members()
            except (exceptions.MissingAttributeError, exceptions.ResourceNotFoundError, exceptions.AccessError):
                continue  # it has none, or none for us
            if found := [drive for drive in drives if _DISCS & set(drive.media_types or ())]:
                return found
        return []

    def _owners(self) -> Iterator[Any]:
        yield self._system
        try:
            yield from self._system.managers
        except exceptions.MissingAttributeError:
            return
