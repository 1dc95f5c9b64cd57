"""The hardware report, from the files in which the kernel describes the machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .disks import disks
from .interfaces import interfaces
from .kernel import clean, meaningful
from .node import EfiSupport, HardwareReport, Node
from .processors import processors
from .smbios import Smbios

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kernel import Kernel

_MEM_TOTAL = re.compile(rb"^MemTotal:\s+(\d{1,15}) kB$", re.MULTILINE)
_GIB = 1 << 30
_SMALL = 2 * _GIB


def hardware_report(kernel: Kernel) -> HardwareReport:
    """Return the hardware report; whatever cannot be found out becomes a warning."""
    node = Node()
    smbios = Smbios(kernel)

    def name() -> None:
        node.manufacturer = _identity(kernel, "sys_vendor")
        node.product = _identity(kernel, "product_name")
        node.serial_number = _identity(kernel, "product_serial")

    def memory() -> None:
        node.memory_installed_bytes, node.memory_usable_ratio = _memory(kernel, smbios)

    def cpu() -> None:
        node.cpu = processors(kernel)

    def block_device() -> None:
        node.block_device = disks(kernel)

    def network_interface() -> None:
        node.network_interface = interfaces(kernel)

    def efi() -> None:
        node.efi_support = _efi(kernel, smbios)

    for part in (name, memory, cpu, block_device, network_interface, efi):
        _attempt(kernel, part)
    return HardwareReport(node, kernel.warnings)


def _attempt(kernel: Kernel, part: Callable[[], None]) -> None:
    try:
        part()
    except Exception as error:  # noqa: BLE001 - the agent must run on any hardware
        kernel.warn(f"{part.__name__}: {type(error).__name__}: {error}")


def _identity(kernel: Kernel, name: str) -> str:
    path = kernel.sys / "class/dmi/id" / name
    content = kernel.content(path)
    if content is None:
        return ""
    text = clean(content)
    if not meaningful(text):
        kernel.warn(f"{path}: {text!r} is a placeholder")
    return meaningful(text)


def _memory(kernel: Kernel, smbios: Smbios) -> tuple[int, float]:
    """Return the installed bytes and the usable share of them."""
    path = kernel.proc / "meminfo"
    match = _MEM_TOTAL.search(kernel.content(path) or b"")
    usable = int(match[1]) << 10 if match else 0
    if not usable:
        kernel.warn(f"{path}: no MemTotal")
    installed = smbios.installed_memory()
    if installed < usable:
        if installed:
            kernel.warn(f"memory: the firmware reports {installed} bytes, but the kernel uses {usable}")
        step = _GIB if usable > _SMALL else _GIB // 4
        installed = -(-usable // step) * step
        kernel.warn("memory: the installed size is an estimate from what the kernel uses")
    return installed, usable / installed if installed else 0.0


def _efi(kernel: Kernel, smbios: Smbios) -> EfiSupport:
    if (kernel.sys / "firmware/efi").exists():
        return EfiSupport.ENABLED
    if smbios.readable:
        return EfiSupport.SUPPORTED if smbios.supports_efi() else EfiSupport.UNSUPPORTED
    kernel.warn("efi: the machine was not started by EFI, and the firmware does not say whether it supports EFI")
    return EfiSupport.UNKNOWN
