"""The network ports of the machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .kernel import natural
from .node import NetworkInterface

if TYPE_CHECKING:
    from pathlib import Path

    from .kernel import Kernel

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5,19}")
_MEGABIT = 125_000  # bytes
_FASTEST = 100_000_000  # megabits per second; drivers report larger values if they do not know the speed


def interfaces(kernel: Kernel) -> list[NetworkInterface]:
    """Return the network ports, without virtual interfaces."""
    return [
        _interface(kernel, folder)
        for folder in kernel.entries(kernel.sys / "class/net")
        if (folder / "device").exists() and not (folder / "device/physfn").exists()
    ]


def _interface(kernel: Kernel, folder: Path) -> NetworkInterface:
    # A bond gives all its ports one address; the first file has the port's own.
    mac = kernel.optional(folder / "bonding_slave/perm_hwaddr") or kernel.text(folder / "address")
    if not _MAC.fullmatch(mac.lower()):
        kernel.warn(f"{folder}: {mac!r} is not a hardware address")
        mac = ""
    driver = folder / "device/driver"
    if not driver.exists():
        kernel.warn(f"{folder}: no driver")
    link_up = kernel.optional(folder / "carrier") == "1"  # cannot be read while the interface is down
    speed = natural(kernel.optional(folder / "speed"), _FASTEST) if link_up else None
    return NetworkInterface(
        mac=bytes.fromhex(mac.replace(":", "")),
        driver=driver.resolve().name if driver.exists() else "",
        link_up=link_up,
        current_speed_bytes=(speed or 0) * _MEGABIT,
    )
