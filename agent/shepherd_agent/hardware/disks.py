"""The disks of the machine."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from .kernel import clean, meaningful
from .node import BlockDevice, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from .kernel import Kernel

# Devices made of memory, files or other block devices; optical and floppy drives; and the hidden parts of an MMC.
_NO_DISK = re.compile(r"(bcache|dm-|drbd|fd|loop|md|nbd|ram|rbd|sr|zd|zram)\d|mmcblk\d+(boot|gp|rpmb)|nvme\d+c\d+n")
_SECTOR = 512
_LARGEST = (1 << 31) - 1
_WWN = re.compile(r"(?:naa|eui)\.((?:[0-9a-f]{2}){1,32})")
_VPD_HEADER = 4
_MULTIPATH = "nvme-subsystem"


def disks(kernel: Kernel) -> list[BlockDevice]:
    """Return the disks, each once, without partitions and devices that are stacked on them."""
    found = []
    for folder in kernel.entries(kernel.sys / "block"):
        if _NO_DISK.match(folder.name) or _is_virtual(folder):
            continue
        sectors = kernel.number(folder / "size", (1 << 63) // _SECTOR - 1)
        if sectors:
            found.append(_disk(kernel, folder, sectors * _SECTOR))
        else:
            kernel.warn(f"{folder}: left out, because it has no medium or reports no size")
    return found


def _is_virtual(folder: Path) -> bool:
    parts = os.path.realpath(folder).split("/")  # unlike Path.resolve, it never raises
    # The kernel counts a disk with several paths to it among the virtual ones.
    return "virtual" in parts and _MULTIPATH not in parts


def _disk(kernel: Kernel, folder: Path, capacity: int) -> BlockDevice:
    drive, queue = folder / "device", folder / "queue"
    vendor = kernel.optional(drive / "vendor")
    protocol = _protocol(folder.name, vendor)
    if protocol is Protocol.ATA and vendor == "ATA":
        vendor = ""  # set by the kernel, not by the disk
    if protocol is Protocol.NVME:
        vendor = vendor or kernel.optional(drive / "device/vendor")
    return BlockDevice(
        vendor=vendor,
        device_model=kernel.optional(drive / "model") or kernel.optional(drive / "name"),
        serial_number=_serial_number(kernel, folder),
        wwn=_wwn(kernel, folder),
        rotational=kernel.number(queue / "rotational") == 1,
        capacity_bytes=capacity,
        logical_block_size_bytes=kernel.number(queue / "logical_block_size", _LARGEST),
        physical_block_size_bytes=kernel.number(queue / "physical_block_size", _LARGEST),
        protocol=protocol,
    )


def _protocol(name: str, vendor: str) -> Protocol:
    if name.startswith("nvme"):
        return Protocol.NVME
    if name.startswith("mmcblk"):
        return Protocol.MMC
    if name.startswith("sd"):
        return Protocol.ATA if vendor == "ATA" else Protocol.SCSI
    return Protocol.UNKNOWN


def _serial_number(kernel: Kernel, folder: Path) -> str:
    for path in (folder / "device/serial", folder / "serial"):
        serial = kernel.optional(path)
        if serial:
            return serial
    page = folder / "device/vpd_pg80"
    serial = meaningful(clean((kernel.content(page) or b"")[_VPD_HEADER:])) if page.exists() else ""
    if not serial:
        kernel.warn(f"{folder}: no serial number")
    return serial


def _wwn(kernel: Kernel, folder: Path) -> bytes:
    """Return the World Wide Name; empty for a disk with another kind of name, or none."""
    for path in (folder / "wwid", folder / "device/wwid"):
        match = _WWN.fullmatch(kernel.optional(path).lower())
        if match:
            return bytes.fromhex(match[1])
    return b""
