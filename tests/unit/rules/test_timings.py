"""Advice on settings that are too short: given when the figures show it, and not otherwise."""

from typing import Any

import pytest
from shepherd_core.rules.timings import SAMPLES, Advice, Timing, advise
from shepherd_core.settings.functions.loops import ProvisionerSettings, RecovererSettings

DEFAULTS: dict[str, Any] = {
    "provider": "static",
    "location": None,
    "after": None,
    "samples": 100,
    "failed_starts": 0,
    "p50": 10.0,
    "p99": 20.0,
    "boot_wait_seconds": 120.0,
    "startup_timeout_seconds": 600.0,
    "grace_seconds": 1800.0,
}


def one(boot_seconds: float | None = None, **facts: Any) -> Advice | None:
    """Return the advice on one timing."""
    found = advise([Timing(**{**DEFAULTS, **facts})], boot_seconds)
    return found[0] if found else None


def brief(advice: Advice | None) -> tuple[str, float | None, float] | None:
    """Return setting, value and recommendation."""
    return None if advice is None else (advice.setting, advice.value, advice.recommended)


@pytest.mark.parametrize(("p99", "recommended"), [(599, None), (600, None), (600.5, 660), (660, 660), (661, 720)])
def test_the_startup_timeout_must_cover_the_first_heartbeats_seen(p99: float, recommended: float | None) -> None:
    """Agents that are slow to report would be taken for broken, and their machines rebooted."""
    expected = recommended and ("startup_timeout_seconds", 600, recommended)
    assert brief(one(what="first heartbeat", p99=p99)) == expected


@pytest.mark.parametrize(("after", "advised"), [("reboot", True), ("restart-agent", True), ("reinstall", False)])
def test_the_grace_must_cover_the_returns_seen(after: str, advised: bool) -> None:
    """A reinstallation may have a grace of its own in the policy, which is not known here."""
    assert brief(one(what="return", after=after, p99=1800)) is None
    assert brief(one(what="return", after=after, p99=1801)) == (("grace_seconds", 1800, 1860) if advised else None)


@pytest.mark.parametrize(
    ("failed_starts", "p50", "recommended"), [(49, 300, None), (50, 300, 300), (50, 301, 360), (50, 120, None)]
)
def test_the_boot_wait_is_too_short_if_half_of_the_machines_were_not_up(
    failed_starts: int, p50: float, recommended: float | None
) -> None:
    """Every boot ends after the boot wait, because nothing is tried before: only failed starts show anything."""
    expected = recommended and ("boot_wait_seconds", 120, recommended)
    assert brief(one(what="boot", after="reboot", failed_starts=failed_starts, p50=p50)) == expected


def test_a_reinstallation_has_its_boot_wait_in_the_policy() -> None:
    """Raising the boot wait of all steps for it would slow down every reboot."""
    found = one(what="boot", after="reinstall", failed_starts=100, p50=900)
    assert found is not None
    assert (found.setting, found.part, found.recommended) == ("remediation_policy", "boot-wait of reinstall", 900)


@pytest.mark.parametrize(("boot_seconds", "advised"), [(None, True), (200, True), (300, False)])
def test_a_creation_is_compared_with_the_boot_time_of_the_provisioner(
    boot_seconds: float | None, advised: bool
) -> None:
    """If that is unset, the provider's usual boot time is too short."""
    found = brief(one(boot_seconds, what="boot", after="creation", failed_starts=60, p50=290))
    assert found == (("boot_seconds", boot_seconds, 300) if advised else None)


@pytest.mark.parametrize(("samples", "advised"), [(SAMPLES - 1, False), (SAMPLES, True)])
def test_a_few_samples_are_no_reason_to_change_a_setting(samples: int, advised: bool) -> None:
    """One machine with a broken disk is not the fleet."""
    assert (one(what="first heartbeat", p99=9_999, samples=samples) is not None) == advised


def test_what_is_not_known_is_not_compared() -> None:
    """Without a Recoverer there is no policy."""
    assert one(what="first heartbeat", p99=9_999, startup_timeout_seconds=None) is None
    assert one(what="return", after="reboot", p99=9_999, grace_seconds=None) is None
    assert one(what="takeover", p99=9_999) is None
    assert one(what="first heartbeat", after="creation", p99=9_999) is None


def test_each_setting_is_advised_once_for_the_slowest_location() -> None:
    """There is one setting for all locations of a provider; another provider has its own."""
    facts: dict[str, Any] = {**DEFAULTS, "what": "first heartbeat"}
    timings = [
        Timing(**{**facts, "location": location, "provider": provider, "p99": p99})
        for location, provider, p99 in (("a", "x", 700), ("b", "x", 900), ("c", "x", 800), ("d", "y", 700))
    ]
    assert [(each.provider, each.recommended, each.seen) for each in advise(timings, None)] == [
        ("x", 900, "first heartbeat: 99 % took up to 900 s at b"),
        ("y", 720, "first heartbeat: 99 % took up to 700 s at d"),
    ]


def test_the_advised_settings_exist() -> None:
    """An operator copies the name."""
    named = {"startup_timeout_seconds", "grace_seconds", "boot_wait_seconds", "remediation_policy"}
    assert named <= RecovererSettings.model_fields.keys()
    assert "boot_seconds" in ProvisionerSettings.model_fields
