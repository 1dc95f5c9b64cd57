"""How long machines take, and which settings are too short for them: ``shepherdctl status --timings``."""

from collections.abc import Sequence

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import timings
from shepherd_core.rules.timings import Advice, Timing, advise
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.effective import effective
from shepherd_core.wiring.settings import in_force

from shepherdctl.output.printing import Column, Form, counted, document, note, table


def show(connection: Connection, output: Form) -> None:
    """Print the timings of the fleet, and advice."""
    records = timings.timings(connection)
    advice = advise([Timing(**record) for record in records], _boot_seconds())
    if output is Form.JSON:
        document({"timings": records, "advice": [_record(each) for each in advice]})
        return
    _print_timings(records)
    _print_advice(advice)


def _boot_seconds() -> float | None:
    """Return the Provisioner's boot time, as this environment and the settings document have it."""
    source = in_force()
    found = effective(None if source is None else source.document()).values.get("provisioner", {}).get("boot_seconds")
    return None if found is None or found.value is None else float(found.value)


def _record(advice: Advice) -> dict[str, object]:
    return {
        "provider": advice.provider,
        "setting": _name(advice),
        "part": advice.part,
        "value": advice.value,
        "seen": advice.seen,
        "recommended": advice.recommended,
    }


def _name(advice: Advice) -> str:
    return PREFIX + advice.setting.upper()


def _print_timings(records: Sequence[dict[str, object]]) -> None:
    table(
        [
            Column("PROVIDER"),
            Column("LOCATION"),
            Column("TIME"),
            Column("P50", number=True),
            Column("P99", number=True),
            Column("SAMPLES", number=True),
            Column("FAILED STARTS", number=True),
        ],
        [
            (
                one["provider"],
                one["location"],
                f"{one['what']} after {one['after']}" if one["after"] else one["what"],
                _seconds(one["p50"]),
                _seconds(one["p99"]),
                one["samples"],
                one["failed_starts"] or None,
            )
            for one in records
        ],
    )
    if not records:
        note("there are no timings yet: no agent was started in the last 30 days")


def _print_advice(advice: Sequence[Advice]) -> None:
    table(
        [
            Column("TOO SHORT"),
            Column("PROVIDER"),
            Column("VALUE", number=True),
            Column("SEEN", prose=True),
            Column("SET TO", number=True),
        ],
        [
            (
                _name(one) + (f" ({one.part})" if one.part else ""),
                one.provider,
                "unset" if one.value is None else f"{one.value:g}",
                one.seen,
                f"{one.recommended:g}",
            )
            for one in advice
        ],
    )
    if advice:
        note(f"{counted(len(advice), 'setting')} too short: see docs/operations.md, How long machines take")


def _seconds(seconds: object) -> str:
    assert isinstance(seconds, float)
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - where tenths begin to matter
