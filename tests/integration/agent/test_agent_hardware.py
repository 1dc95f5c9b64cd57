import os
from pathlib import Path

import pytest
from google.protobuf import text_format
from shepherd_core.domain.pb.agent_pb2 import EFISupport
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
    """Return the report on a tree, which others read and write as we do; in its warnings the folder is left out."""
    if tree is not None:
        unfold(tree, folder)
    report = hardware_report(Kernel(folder / "proc", folder / "sys"))
    report.warning[:] = [warning.replace(f"{folder}/", "") for warning in report.warning]
    read = AgentHardwareReport.FromString(encode(report))
    assert read.SerializeToString() == encode(report)
    return read


@pytest.mark.parametrize("machine", ["server", "vm"])
def test_a_machine_is_described_by_all_that_is_told(tmp_path: Path, machine: str) -> None:
    expected = text_format.Parse((TREES / f"{machine}.report").read_text(), AgentHardwareReport())
    assert text_format.MessageToString(_report(tmp_path, machine)) == text_format.MessageToString(expected)


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
