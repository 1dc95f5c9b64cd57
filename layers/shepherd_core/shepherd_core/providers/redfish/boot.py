"""
Reads and sets what a computer system boots from: its boot override, and the medium in its virtual drive.

Before a plain restart, a one-time override is cleared, even if the BMC shows none,
and our medium is ejected. Some BMCs show an override as disabled until it takes
effect, or a one-time one as lasting, and none of them says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sushy import exceptions
from sushy.resources.manager.constants import VirtualMediaType
from sushy.resources.system.constants import BootSource, BootSourceOverrideEnabled

from shepherd_core import telemetry
from shepherd_core.domain.errors.provider import NotSupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sushy.resources.system.system import System

    from shepherd_core.providers.redfish.bmc import Bmc

PXE = "pxe"
"""The only boot source that is not a URL."""

_UNABLE = (400, 404, 405, 501)
_DISCS = {VirtualMediaType.CD, VirtualMediaType.DVD}


class Boot:
    """Reads and sets what *system* of *bmc* boots from."""

    def __init__(self, bmc: Bmc, system: System, source: str | None) -> None:
        """*source*: ``pxe``, or the URL of an image for the virtual drive; None: it is never reinstalled."""
        self._bmc = bmc
        self._system = system
        self._source = source

    def source(self) -> tuple[BootSource, Any]:
        """
        Return what to boot from, and the virtual drive for the medium; None: without a medium.

        Raises:
            NotSupported: the BMC has no such drive, or does not let the system boot from it.
        """
        target, drive = BootSource.PXE, None
        if self._source != PXE:
            target, drive = BootSource.CD, next(iter(self._drives()), None)
            if drive is None:
                raise NotSupported(f"{self._bmc.name} has no virtual CD or DVD drive for {self._system.path}")
        if target not in self._system.get_allowed_system_boot_source_values():
            raise NotSupported(f"{self._bmc.name} does not let {self._system.path} boot from {target.value}")
        return target, drive

    def insert(self, drive: Any) -> None:
        """
        Insert the image into *drive*.

        Raises:
            NotSupported: it takes no image; nothing was done.
        """
        try:
            if drive.inserted:
                drive.eject_media()
            drive.insert_media(self._source)
        except exceptions.MissingActionError as error:
            raise NotSupported(f"{self._bmc.name} cannot insert an image for {self._system.path}") from error

    def as_usual(self) -> None:
        """Clear every override but one that is meant to last and does not lead to our source; eject our medium."""
        boots = [resource.get("Boot") or {} for resource in (self._system.json, self._pending())]
        shown = [(boot.get("BootSourceOverrideEnabled"), boot.get("BootSourceOverrideTarget")) for boot in boots]
        ours = {None: None, PXE: BootSource.PXE.value}.get(self._source, BootSource.CD.value)
        lasts, once = BootSourceOverrideEnabled.CONTINUOUS.value, BootSourceOverrideEnabled.ONCE.value
        if any(enabled is not None and (enabled != lasts or target == ours) for enabled, target in shown):
            try:
                self._clear()
            except exceptions.HTTPError as error:
                waits = ours is not None or any(enabled == once for enabled, _ in shown)
                if waits or error.status_code not in _UNABLE:
                    raise
                # No override of ours can be set, so a BMC that shows none and cannot clear one is believed.
                system = f"{self._bmc.name} {self._system.path}"
                telemetry.warning("boot override not cleared", system=system, error=error)
        if self._source not in {None, PXE}:
            for drive in self._drives():
                if drive.inserted and drive.image == self._source:
                    drive.eject_media()  # the firmware may boot from a medium in the drive without an override

    def _clear(self) -> None:
        """Disable the override; for a BMC that knows none without a target, such as the emulator, to boot from disk."""
        try:
            self._system.set_system_boot_options(enabled=BootSourceOverrideEnabled.DISABLED)
        except exceptions.HTTPError as error:
            allowed = self._system.get_allowed_system_boot_source_values()
            if error.status_code not in _UNABLE or BootSource.HDD not in allowed:
                raise
            self._system.set_system_boot_options(BootSource.HDD, BootSourceOverrideEnabled.DISABLED)

    def _pending(self) -> dict[str, Any]:
        """Return the settings from the next reset on, which some BMCs keep in a separate resource; else empty."""
        settings = self._system.json.get("@Redfish.Settings") or {}
        path = (settings.get("SettingsObject") or {}).get("@odata.id")
        try:
            pending: dict[str, Any] = {} if path is None else self._bmc.get(path).json()
        except exceptions.ResourceNotFoundError:
            return {}
        return pending

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
