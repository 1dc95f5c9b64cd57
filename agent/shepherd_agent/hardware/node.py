"""The hardware of a machine: the messages of ``proto/agent.proto``, with their field numbers."""

# ruff: noqa: RUF009 - numbered() makes a dataclasses.field

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ..wire import numbered


class EfiSupport(IntEnum):
    """Whether the machine starts by EFI."""

    UNKNOWN = 1
    UNSUPPORTED = 2
    SUPPORTED = 3
    ENABLED = 4


class Protocol(IntEnum):
    """The protocol of a disk."""

    UNKNOWN = 0
    SCSI = 1
    ATA = 2
    NVME = 3
    MMC = 4


@dataclass
class X86:
    """The identification of a processor with the x86-64 instruction set."""

    family: int = numbered(1, 0)
    model: int = numbered(2, 0)
    stepping: int = numbered(3, 0)


@dataclass
class Cpu:
    """One processor package."""

    x86_64: X86 | None = numbered(1)
    cores: int = numbered(8, 0)
    hardware_threads: int = numbered(9, 0)
    vendor: str = numbered(10, "")
    model: str = numbered(11, "")


@dataclass
class BlockDevice:
    """One disk."""

    vendor: str = numbered(1, "")
    device_model: str = numbered(2, "")
    serial_number: str = numbered(3, "")
    wwn: bytes = numbered(4, b"")
    rotational: bool = numbered(5, default=False)
    capacity_bytes: int = numbered(6, 0)
    logical_block_size_bytes: int = numbered(7, 0)
    physical_block_size_bytes: int = numbered(8, 0)
    protocol: Protocol = numbered(9, Protocol.UNKNOWN)


@dataclass
class NetworkInterface:
    """One network port."""

    mac: bytes = numbered(1, b"")
    driver: str = numbered(2, "")
    supported_speed_bytes: list[int] = numbered(3, default_factory=list)
    link_up: bool = numbered(4, default=False)
    current_speed_bytes: int = numbered(5, 0)


@dataclass
class Node:
    """The machine; unknown values are 0 or empty."""

    manufacturer: str = numbered(1, "")
    product: str = numbered(2, "")
    serial_number: str = numbered(3, "")
    memory_installed_bytes: int = numbered(8, 0)
    memory_usable_ratio: float = numbered(9, 0.0)
    cpu: list[Cpu] = numbered(10, default_factory=list)
    block_device: list[BlockDevice] = numbered(11, default_factory=list)
    network_interface: list[NetworkInterface] = numbered(12, default_factory=list)
    efi_support: EfiSupport = numbered(13, EfiSupport.UNKNOWN)


@dataclass
class HardwareReport:
    """The AgentHardwareReport of ``proto/callback.proto``."""

    report: Node = numbered(1, default_factory=Node)
    warning: list[str] = numbered(2, default_factory=list)
