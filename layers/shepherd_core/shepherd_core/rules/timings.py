"""Advice on settings that are shorter than what machines take. Pure rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.domain.remediation import REINSTALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SAMPLES = 5
"""Fewer samples give no advice."""
_ROUNDED_TO = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What machines of one location took, in seconds; the fields are those of ``bmdb.machines.timings``."""

    provider: str
    location: str | None
    what: str
    after: str | None
    samples: int
    failed_starts: int
    p50: float
    p99: float
    boot_wait_seconds: float | None
    startup_timeout_seconds: float | None
    grace_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A setting that is too short for a provider."""

    provider: str
    setting: str
    """The name of its field."""
    part: str | None = None
    """Which part of its value is meant; None: all."""
    value: float | None
    """Seconds; None: it is unset."""
    seen: str
    """What was seen, human-readable."""
    recommended: float
    """Seconds, in whole minutes."""


def advise(timings: Iterable[Timing], boot_seconds: float | None) -> list[Advice]:
    """Return at most one advice for each provider and setting; *boot_seconds* is the Provisioner's, if it is set."""
    found: dict[tuple[str, str, str | None], Advice] = {}
    for timing in timings:
        for advice in _advice(timing, boot_seconds) if timing.samples >= SAMPLES else ():
            key = advice.provider, advice.setting, advice.part
            if key not in found or found[key].recommended < advice.recommended:
                found[key] = advice
    return list(found.values())


def _advice(timing: Timing, boot_seconds: float | None) -> Iterator[Advice]:
    p99 = f"99 % took up to {timing.p99:.0f} s{_where(timing)}"
    match timing.what, timing.after:
        case "first heartbeat", None if timing.p99 > (timing.startup_timeout_seconds or math.inf):
            seen = f"first heartbeat: {p99}"
            yield _of(timing, "startup_timeout_seconds", timing.startup_timeout_seconds, timing.p99, seen)
        # The policy may give a reinstall a grace of its own, which is not on record.
        case "return", after if after != REINSTALL.name and timing.p99 > (timing.grace_seconds or math.inf):
            yield _of(timing, "grace_seconds", timing.grace_seconds, timing.p99, f"return after {after}: {p99}")
        case "boot", after:
            value = boot_seconds if after == "creation" else timing.boot_wait_seconds
            # No agent start is tried before the boot wait is over. Failed first starts alone show that it is too short.
            if 2 * timing.failed_starts < timing.samples or timing.p50 <= (value or 0):
                return
            seen = (
                f"boot after {after}: half took {timing.p50:.0f} s or longer, "
                f"and {timing.failed_starts} of {timing.samples} were not up at the first agent start{_where(timing)}"
            )
            setting = {"creation": "boot_seconds", REINSTALL.name: "remediation_policy"}.get(
                str(after), "boot_wait_seconds"
            )
            part = f"boot-wait of {after}" if setting == "remediation_policy" else None
            yield _of(timing, setting, value, timing.p50, seen, part)


def _where(timing: Timing) -> str:
    return "" if timing.location is None else f" at {timing.location}"


def _of(
    timing: Timing, setting: str, value: float | None, seconds: float, seen: str, part: str | None = None
) -> Advice:
    recommended = math.ceil(seconds / _ROUNDED_TO) * _ROUNDED_TO
    return Advice(provider=timing.provider, setting=setting, part=part, value=value, seen=seen, recommended=recommended)
