"""The hardware of a machine as reported by its agent, as JSON and as lines of text."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shepherd_core.domain.pb.agent_pb2 import CPU, BlockDevice, EFISupport, NetworkInterface
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport

from shepherdctl.output.formats import relative, size, speed
from shepherdctl.output.printing import counted

_PROTOCOLS = {
    BlockDevice.PROTOCOL_SCSI: "SCSI",
    BlockDevice.PROTOCOL_ATA: "ATA",
    BlockDevice.PROTOCOL_NVME: "NVMe",
    BlockDevice.PROTOCOL_MMC: "MMC",
}
_EFI = {
    EFISupport.EFI_UNSUPPORTED: "unsupported",
    EFISupport.EFI_SUPPORTED: "supported",
    EFISupport.EFI_ENABLED: "enabled",
}
_EFI_TEXT = {
    "unsupported": "not supported",
    "supported": "supported, but not in use",
    "enabled": "in use",
}


def plain(raw: bytes, reported_at: datetime) -> dict[str, Any]:
    """Return an AgentHardwareReport in the types of JSON; None: the agent could not find out."""
    report = AgentHardwareReport.FromString(raw)
    node = report.report
    return {
        "reported_at": reported_at,
        "manufacturer": node.manufacturer or None,
        "product": node.product or None,
        "serial_number": node.serial_number or None,
        "memory_installed_bytes": node.memory_installed_bytes or None,
        "memory_usable_ratio": _ratio(node.memory_usable_ratio) or None,
        "cpus": [_cpu(cpu) for cpu in node.cpu],
        "disks": [_disk(disk) for disk in node.block_device],
        "interfaces": [_interface(interface) for interface in node.network_interface],
        "efi": _EFI.get(node.efi_support),
        "warnings": list(report.warning),
    }


def rows(hardware: Mapping[str, Any], now: datetime) -> list[tuple[str, object]]:
    """Return the result of ``plain`` as lines of a name and a value."""
    return [
        ("hardware", f"reported {relative(hardware['reported_at'], now)}"),
        ("manufacturer", hardware["manufacturer"]),
        ("product", hardware["product"]),
        ("serial number", hardware["serial_number"]),
        *(("processor", _describe_cpu(cpu)) for cpu in hardware["cpus"]),
        ("memory", _describe_memory(hardware)),
        *(("disk", _describe_disk(disk)) for disk in hardware["disks"]),
        *(("interface", _describe_interface(interface)) for interface in hardware["interfaces"]),
        ("EFI", _EFI_TEXT.get(hardware["efi"])),
        *(("warning", warning) for warning in hardware["warnings"]),
    ]


def _cpu(cpu: CPU) -> dict[str, Any]:
    x86_64 = cpu.x86_64
    named = {"family": x86_64.family, "model": x86_64.model, "stepping": x86_64.stepping}
    return {
        "vendor": cpu.vendor or None,
        "model": cpu.model or None,
        "cores": cpu.cores or None,
        "hardware_threads": cpu.hardware_threads or None,
        "x86_64": named if cpu.HasField("x86_64") else None,
    }


def _disk(disk: BlockDevice) -> dict[str, Any]:
    return {
        "vendor": disk.vendor or None,
        "model": disk.device_model or None,
        "serial_number": disk.serial_number or None,
        "wwn": disk.wwn.hex() or None,
        "protocol": _PROTOCOLS.get(disk.protocol),
        "rotational": disk.rotational,
        "capacity_bytes": disk.capacity_bytes or None,
        "logical_block_size_bytes": disk.logical_block_size_bytes or None,
        "physical_block_size_bytes": disk.physical_block_size_bytes or None,
        "critical_warning": disk.critical_warning,
        "media_errors": disk.media_errors if disk.HasField("media_errors") else None,
        "available_spare_ratio": _ratio(disk.available_spare_ratio) if disk.HasField("available_spare_ratio") else None,
        "usage_ratio": _ratio(disk.usage_ratio) if disk.HasField("usage_ratio") else None,
    }


def _interface(interface: NetworkInterface) -> dict[str, Any]:
    return {
        "mac": interface.mac.hex(":") or None,
        "driver": interface.driver or None,
        "link_up": interface.link_up,
        "current_speed_bytes": interface.current_speed_bytes or None,
        "supported_speed_bytes": list(interface.supported_speed_bytes),
    }


def _ratio(value: float) -> float | None:
    """Return a 32-bit number without spurious digits; None: it is not finite, which JSON lacks."""
    return round(value, 6) if math.isfinite(value) else None


def _describe_cpu(cpu: Mapping[str, Any]) -> str:
    return _listed(
        cpu["model"] or cpu["vendor"] or "unnamed",
        cpu["cores"] and counted(cpu["cores"], "core"),
        cpu["hardware_threads"] and counted(cpu["hardware_threads"], "thread"),
    )


def _describe_memory(hardware: Mapping[str, Any]) -> str | None:
    installed, usable = hardware["memory_installed_bytes"], hardware["memory_usable_ratio"]
    return installed and _listed(size(installed), usable and f"{usable:.0%} of it usable")


def _describe_disk(disk: Mapping[str, Any]) -> str:
    return _listed(
        size(disk["capacity_bytes"]) if disk["capacity_bytes"] else "unknown size",
        disk["protocol"],
        "rotating" if disk["rotational"] else None,
        " ".join(filter(None, (disk["vendor"], disk["model"]))),
        disk["serial_number"] and f"serial number {disk['serial_number']}",
        disk["usage_ratio"] is not None and f"{disk['usage_ratio']:.0%} of its lifetime used",
        disk["available_spare_ratio"] is not None and f"{disk['available_spare_ratio']:.0%} of its spare blocks left",
        disk["media_errors"] and counted(disk["media_errors"], "media error"),
        disk["critical_warning"] and "critical warning",
    )


def _describe_interface(interface: Mapping[str, Any]) -> str:
    rate = interface["current_speed_bytes"]
    link = f"link at {speed(rate)}" if rate else "link"
    return _listed(interface["mac"], interface["driver"], link if interface["link_up"] else "no link")


def _listed(*parts: str | bool | int | None) -> str:
    return ", ".join(str(part) for part in parts if part)
