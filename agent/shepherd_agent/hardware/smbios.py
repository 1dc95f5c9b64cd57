"""Firmware and memory, from the SMBIOS table (DSP0134)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .kernel import Kernel

_FIRMWARE, _MEMORY = 0, 17
_HEADER = 4
_EXTENSION_2, _UEFI = 0x13, 0b1000
_SIZE, _MEMORY_TYPE, _EXTENDED_SIZE = 0x0C, 0x12, 0x1C
_UNKNOWN, _EXTENDED = 0xFFFF, 0x7FFF
_IN_KILOBYTES = 0x8000
_READ_ONLY_MEMORY = range(0x08, 0x0D)  # ROM, flash and the like: not working memory


class Smbios:
    """The structures of the table that can be read."""

    def __init__(self, kernel: Kernel) -> None:
        """Read the table; failures become warnings."""
        table = kernel.content(kernel.sys / "firmware/dmi/tables/DMI")
        self.structures = list(structures(table or b""))
        self._kernel = kernel

    @property
    def readable(self) -> bool:
        """Whether any structure could be read."""
        return bool(self.structures)

    def installed_memory(self) -> int:
        """Return the sum of all memory modules in bytes; 0 if unknown."""
        total = 0
        for structure in self.structures:
            if structure[0] == _MEMORY:
                size = module_size(structure)
                if size is None:
                    self._kernel.warn("memory: the firmware does not know the size of a module")
                    return 0
                total += size
        return total

    def supports_efi(self) -> bool:
        """Return whether the firmware reports support for EFI."""
        return any(
            structure[0] == _FIRMWARE and len(structure) > _EXTENSION_2 and structure[_EXTENSION_2] & _UEFI
            for structure in self.structures
        )


def structures(table: bytes) -> Iterator[bytes]:
    """Yield the formatted part of each structure, without its texts; end at the first malformed one."""
    position = 0
    while position + _HEADER <= len(table):
        length = table[position + 1]
        texts = table.find(b"\0\0", position + length)
        if length < _HEADER or texts < 0:
            return
        yield table[position : position + length]
        position = texts + 2


def module_size(structure: bytes) -> int | None:
    """Return the size in bytes of the memory module that *structure* describes; 0: an empty slot; None: unknown."""
    if len(structure) < _SIZE + 2:
        return None
    if len(structure) > _MEMORY_TYPE and structure[_MEMORY_TYPE] in _READ_ONLY_MEMORY:
        return 0
    size = int.from_bytes(structure[_SIZE : _SIZE + 2], "little")
    if size == _UNKNOWN:
        return None
    if size == _EXTENDED and len(structure) >= _EXTENDED_SIZE + 4:
        return (int.from_bytes(structure[_EXTENDED_SIZE : _EXTENDED_SIZE + 4], "little") & 0x7FFF_FFFF) << 20
    if size & _IN_KILOBYTES:
        return (size & ~_IN_KILOBYTES) << 10
    return size << 20
