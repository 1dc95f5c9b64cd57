"""The hardware report, from the files in which kernels describe machines."""

import os
from pathlib import Path

import pytest
from shepherd_core.domain.pb.agent_pb2 import CPU, BlockDevice, EFISupport, NetworkInterface
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport

from agent.shepherd_agent.hardware.kernel import Kernel
from agent.shepherd_agent.hardware.report import hardware_report
from agent.shepherd_agent.hardware.smbios import module_size
from agent.shepherd_agent.wire import encode

GIB = 1 << 30
TREES = Path(__file__).parents[2] / "data" / "trees"


def unfold(name: str, folder: Path) -> None:
    """Write a tree of files into *folder*: lines ``path = text``, ``path : hexadecimal`` or ``path -> target``."""
    for line in (TREES / f"{name}.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        path, kind, content = line.split(" ", 2) if line.count(" ") > 1 else (*line.split(" "), "")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "->":
            file.symlink_to(content)
        elif kind == ":":
            file.write_bytes(bytes.fromhex(content))
        else:
            assert kind == "="
            file.write_bytes(content.encode("latin-1").decode("unicode_escape").encode())


def _report(folder: Path, tree: str | None) -> AgentHardwareReport:
    """Return the report on a tree, as the server reads it; in its warnings the folder is left out."""
    if tree is not None:
        unfold(tree, folder)
    report = hardware_report(Kernel(folder / "proc", folder / "sys"))
    report.warning[:] = [warning.replace(f"{folder}/", "") for warning in report.warning]
    return AgentHardwareReport.FromString(encode(report))


def test_a_server_is_described(tmp_path: Path) -> None:
    report = _report(tmp_path, "server")
    node = report.report
    assert (node.manufacturer, node.product, node.serial_number) == ("Example Servers", "ES-2000 Gen3", "ES0001234")
    assert node.efi_support == EFISupport.EFI_ENABLED
    processor = CPU(
        x86_64=CPU.X86_64(family=6, model=106, stepping=6),
        cores=2,
        hardware_threads=4,
        vendor="GenuineIntel",
        model="Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz",
    )
    assert list(node.cpu) == [processor, processor]
    assert list(report.warning) == ["sys/block/sdc: left out, because it has no medium or reports no size"]
    # Two modules of 64 GiB, one of 16, one of 512 KiB; an empty slot and a flash chip count nothing.
    assert node.memory_installed_bytes == 144 * GIB + (512 << 10)
    assert node.memory_usable_ratio == pytest.approx(148635648 * 1024 / node.memory_installed_bytes)
    # Not a second path to a disk, no other block device, and no array of disks.
    assert list(node.block_device) == [
        BlockDevice(
            device_model="SAMSUNG MZQL23T8HCLS-00A07",
            serial_number="S64GNE0R000001",
            wwn=bytes.fromhex("36344730529000010025384500000001"),
            capacity_bytes=7501476528 * 512,
            logical_block_size_bytes=512,
            physical_block_size_bytes=512,
            protocol=BlockDevice.PROTOCOL_NVME,
        ),
        BlockDevice(
            device_model="SAMSUNG MZ7LH480",
            serial_number="S45NNE0M123456",
            wwn=bytes.fromhex("5002538e00123456"),
            capacity_bytes=937703088 * 512,
            logical_block_size_bytes=512,
            physical_block_size_bytes=4096,
            protocol=BlockDevice.PROTOCOL_ATA,
        ),
        BlockDevice(
            vendor="SEAGATE",
            device_model="ST12000NM0027",
            serial_number="ZJV0ABCD",
            wwn=bytes.fromhex("5000c500a1b2c3d4"),
            rotational=True,
            capacity_bytes=23437770752 * 512,
            logical_block_size_bytes=512,
            physical_block_size_bytes=4096,
            protocol=BlockDevice.PROTOCOL_SCSI,
        ),
    ]
    # A bond lends its address to its ports; neither it nor a virtual function is a port.
    assert list(node.network_interface) == [
        NetworkInterface(
            mac=bytes.fromhex("020000000011"), driver="ice", link_up=True, current_speed_bytes=25_000_000_000 // 8
        ),
        NetworkInterface(mac=bytes.fromhex("020000000012"), driver="ice"),
    ]


def test_a_virtual_machine_is_described_as_far_as_it_goes(tmp_path: Path) -> None:
    report = _report(tmp_path, "vm")
    node = report.report
    assert (node.manufacturer, node.serial_number) == ("QEMU", "")
    assert node.memory_installed_bytes == 4 * GIB
    assert node.efi_support == EFISupport.EFI_UNSUPPORTED
    (cpu,) = node.cpu
    assert (cpu.cores, cpu.hardware_threads, cpu.model) == (2, 2, "AMD EPYC-Milan Processor")
    (disk,) = node.block_device
    assert (disk.protocol, disk.capacity_bytes) == (BlockDevice.PROTOCOL_UNKNOWN, 20 * GIB)
    (port,) = node.network_interface
    assert (port.driver, port.link_up, port.current_speed_bytes) == ("virtio_net", True, 0)
    assert list(report.warning) == [
        "sys/class/dmi/id/product_serial: 'Not Specified' is a placeholder",
        "sys/block/vda: no serial number",
    ]


def test_what_the_firmware_does_not_tell_is_guessed(tmp_path: Path) -> None:
    """Only root may read its table of memory; the next operating system must be installed for EFI, or not."""
    unfold("server", tmp_path)
    (tmp_path / "sys/firmware/efi").rename(tmp_path / "sys/firmware/not-efi")
    assert _report(tmp_path, None).report.efi_support == EFISupport.EFI_SUPPORTED
    table = tmp_path / "sys/firmware/dmi/tables/DMI"
    table.write_bytes(b"\x11\x14" + bytes(10) + b"\xff\xff" + bytes(8))
    report = _report(tmp_path, None)
    assert report.report.memory_installed_bytes == 142 * GIB
    assert "memory: the firmware does not know the size of a module" in report.warning
    table.unlink()
    report = _report(tmp_path, None)
    assert report.report.memory_installed_bytes == 142 * GIB
    assert "memory: the installed size is an estimate from what the kernel uses" in report.warning
    (tmp_path / "proc/meminfo").write_text("MemTotal: 149684224 kB\n")
    assert _report(tmp_path, None).report.memory_installed_bytes == 143 * GIB


@pytest.mark.parametrize(("length", "size"), [(13, None), (14, 32767 << 20), (31, 32767 << 20), (32, 65536 << 20)])
def test_a_module_s_size_is_read_from_what_is_there(length: int, size: int | None) -> None:
    """Firmware of an older standard writes shorter structures."""
    structure = bytes(12) + b"\xff\x7f" + bytes(14) + b"\0\0\1\0"
    assert module_size(structure[:length]) == size


def test_a_machine_without_hardware_data_reports_warnings(tmp_path: Path) -> None:
    """A container may have neither /proc nor /sys."""
    report = _report(tmp_path, None)
    assert report.report.ListFields() == [(report.report.DESCRIPTOR.fields_by_name["efi_support"], 1)]
    for path in ("proc/cpuinfo", "proc/meminfo", "sys/block", "sys/class/net", "sys/class/dmi/id/sys_vendor"):
        assert f"{path}: No such file or directory" in report.warning


def test_garbage_gives_warnings_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net" / os.fsdecode(b"eth\xff") / "device").mkdir(parents=True)
    report = _report(tmp_path, "garbage")
    node = report.report
    assert node.memory_installed_bytes == 0
    assert [disk.capacity_bytes for disk in node.block_device] == [18014398509481983 * 512]
    assert [port.mac for port in node.network_interface] == [b"", b""]
    assert len(node.product) <= 200
    assert node.manufacturer.isprintable()
    text = "\n".join(report.warning)
    for what in ("'cpu family'", "'99999999999'", "MemTotal", "'-5'", "'4294967296'", "sdc", "sde", "'not a mac'"):
        assert what in text
    assert "sys/class/net/eth?: no driver" in report.warning
    assert any(warning.startswith("sys/class/dmi/id/product_serial: ") for warning in report.warning)
    # What no part foresaw would show as the name of the exception.
    assert "Error:" not in text
    for number in range(300):
        (tmp_path / f"sys/block/sd{number}").mkdir(parents=True)
    assert len(_report(tmp_path, None).warning) == 100
