"""The processors of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .kernel import clean, natural
from .node import X86, Cpu

if TYPE_CHECKING:
    from .kernel import Kernel

_LARGEST = (1 << 31) - 1


def processors(kernel: Kernel) -> list[Cpu]:
    """Return the processor packages, with the cores and hardware threads that are online."""
    path = kernel.proc / "cpuinfo"
    packages: dict[str, list[dict[str, str]]] = {}
    for thread in _threads(kernel.content(path) or b""):
        topology = kernel.sys / f"devices/system/cpu/cpu{thread['processor']}/topology"
        package = thread.get("physical id") or kernel.optional(topology / "physical_package_id")
        thread.setdefault("core id", kernel.optional(topology / "core_id") or thread["processor"])
        packages.setdefault(package, []).append(thread)
    if not packages:
        kernel.warn(f"{path}: no processors are listed")
    return [_package(kernel, threads) for threads in packages.values()]


def _threads(content: bytes) -> list[dict[str, str]]:
    """Return the paragraphs of ``cpuinfo`` about hardware threads, one for each."""
    threads = []
    for paragraph in content.split(b"\n\n"):
        pairs = (line.partition(b":") for line in paragraph.splitlines())
        thread = {clean(name): clean(value) for name, _, value in pairs}
        if natural(thread.get("processor", "")) is not None:
            threads.append(thread)
    return threads


def _package(kernel: Kernel, threads: list[dict[str, str]]) -> Cpu:
    first = threads[0]
    x86 = None
    if "cpu family" in first:
        x86 = X86(*(_number(kernel, first, name) for name in ("cpu family", "model", "stepping")))
    return Cpu(
        x86_64=x86,
        cores=len({thread["core id"] for thread in threads}),
        hardware_threads=len(threads),
        vendor=first.get("vendor_id") or first.get("CPU implementer", ""),
        model=first.get("model name") or first.get("CPU part", ""),
    )


def _number(kernel: Kernel, thread: dict[str, str], name: str) -> int:
    number = natural(thread.get(name, ""), _LARGEST)
    if number is None:
        kernel.warn(f"{kernel.proc / 'cpuinfo'}: {name!r} of a processor is {thread.get(name)!r}, not a number")
    return number or 0
