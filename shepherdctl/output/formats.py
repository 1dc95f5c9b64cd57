"""Times, durations, sizes, names, scopes and counts in human-readable form, and the parser of durations."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import typer
from shepherd_core.settings.functions.specs import PAUSED_AS
from shepherd_core.telemetry import Metric

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPANS = ((120, 1, "s"), (120, 60, "min"), (48, 3_600, "h"))
_LONGEST_DAYS = 366
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s")
_LOOPS = {stored: loop.capitalize() for loop, stored in PAUSED_AS.items()}


def duration(text: str) -> float:
    """
    Return the seconds in *text*: a whole number and a unit, as 90s, 15m, 2h or 1d.

    Raises:
        BadParameter: *text* is no such duration, is zero, or is longer than a year.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_DAYS * _UNITS["d"]:
        message = (
            f"{text!r} is not a duration: it must be 90s, 15m, 2h or 1d, for example, and at most {_LONGEST_DAYS}d."
        )
        raise typer.BadParameter(message)
    return float(seconds)


def span(seconds: float) -> str:
    """Return a length of time, rounded, in the unit that suits it: ``12 s``, ``14 min``, ``30 h``, ``3 days``."""
    for below, unit, name in _SPANS:
        if (count := round(seconds / unit)) < below:
            return f"{count} {name}"
    return f"{round(seconds / _UNITS['d'])} days"


def relative(moment: datetime, now: datetime) -> str:
    """Return how far *moment* is from *now*: ``12 s ago``, ``in 4 min``."""
    seconds = (now - moment).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def at(moment: datetime) -> str:
    """Return *moment* in the time zone of the terminal, with its offset from UTC: ``2026-11-28 04:12:03+0100``."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S%z}"


def iso(moment: datetime) -> str:
    """Return *moment* as ISO 8601 in UTC, always of the same length."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def size(octets: int) -> str:
    """Return a number of bytes in the binary unit that suits it: ``512 B``, ``1.5 TiB``."""
    return _scaled(octets, 1024, _BINARY)


def speed(octets: int) -> str:
    """Return a number of bytes per second in bits, as networks are sold: ``25 Gbit/s``."""
    return _scaled(8 * octets, 1000, _DECIMAL)


def loop_name(process: str) -> str:
    """Return the loop that carries out *process*, or that a pause names; else *process* itself."""
    return _LOOPS.get(process, process)


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    """Return *value* with at most one decimal, below *step* wherever there is a unit for it."""
    unit = 0
    while round(value, 1) >= step and unit < len(units) - 1:
        value, unit = value / step, unit + 1
    return f"{value:.1f}".removesuffix(".0") + f" {units[unit]}"


def scope_in_words(
    machine: str | None,
    process: str | None,
    provider: str | None,
    location: str | None = None,
    with_labels: Sequence[str] | None = None,
) -> str:
    """Return the machines and loops that a pause covers, in words."""
    parts = (
        machine and f"machine {machine}",
        process and f"loop {loop_name(process)}",
        provider and f"provider {provider}",
        location and f"location {location}",
        f"label {' and '.join(with_labels)}" if with_labels else None,
    )
    return ", ".join(filter(None, parts)) or "everything"


def natural(name: str | None) -> list[tuple[str, int]]:
    """Return the key by which *name* is sorted as people do: rack1-2 before rack1-10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name or "")]


def in_full(provider_id: str | None, machine_id: object) -> str:
    """Return how people call a machine, with its id: ``rack1-3 (3f2a0c9e)``."""
    return f"{provider_id} ({machine_id})" if provider_id else str(machine_id)


def did(counts: Mapping[str, float]) -> Iterator[str]:
    """Yield the counts that are not 0, in words, in the order of the metrics."""
    for metric in Metric:
        if count := counts.get(metric.value):
            words = metric.value.removesuffix("_seconds").replace("_", " ")
            yield f"{words} {span(count)}" if metric.unit == "Seconds" else f"{count:g} {words}"
