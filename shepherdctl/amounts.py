"""Amounts of memory and disk, and speeds, as people read them."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s")


def size(octets: int) -> str:
    """Return a number of bytes in the binary unit that suits it: ``512 B``, ``1.5 TiB``."""
    return _scaled(octets, 1024, _BINARY)


def speed(octets: int) -> str:
    """Return a number of bytes per second as networks are sold, in bits: ``25 Gbit/s``."""
    return _scaled(8 * octets, 1000, _DECIMAL)


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    """Return *value* with one digit after the point at most, and below *step* wherever there is a unit for it."""
    unit = 0
    while round(value, 1) >= step and unit < len(units) - 1:
        value, unit = value / step, unit + 1
    return f"{value:.1f}".removesuffix(".0") + f" {units[unit]}"
