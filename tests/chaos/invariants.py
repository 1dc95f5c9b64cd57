"""
What must hold at all times, whoever died where: one function for each promise.

Each returns what is wrong, in words; nothing if the promise is kept. They look
at the database past the product's code and at the edges, never at what the
functions say of themselves.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shepherd_core.providers.equinix_objects import TOKEN_TAG

from tests.integration.provisioning import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.world import World

LONGEST_WAIT = "5 hours"
"""More than any backoff, settle time or session of the scenarios."""

_SHEPHERD = "('ShepherdAccess', 'ShepherdAgentStart', 'ShepherdRecovery')"
_ENDS = "('Finished', 'Failed', 'Canceled', 'Expired')"


def no_machine_is_doubled(world: World) -> list[str]:
    """One machine at the provider for one in the BMDB: nobody pays for a machine that nobody uses."""
    tokens = Counter(tag for device in world.api.devices() for tag in device.tags if tag.startswith(TOKEN_TAG))
    return [f"{count} machines at the provider carry {token}" for token, count in tokens.items() if count > 1]


def no_more_machines_than_the_limit(world: World) -> list[str]:
    """Keep to the limit, which is somebody's money."""
    ours = [device.id for device in world.api.devices() if device.hostname.startswith(PREFIX)]
    return [f"{len(ours)} machines, the limit is {world.limit}"] if world.limit and len(ours) > world.limit else []


def nobody_works_twice_on_a_machine(world: World) -> list[str]:
    """Let a machine have one live work at most, whatever the process."""
    return _wrong(
        world,
        "{0} has {1} live works at once",
        f"""
        SELECT w.machine_id, count(*) FROM work w JOIN sessions s ON s.session_id = w.session_id
        WHERE w.process IN {_SHEPHERD} AND s.deadline > clock_timestamp()
        GROUP BY w.machine_id HAVING count(*) > 1
        """,
    )


def a_dead_session_commits_nothing(world: World) -> list[str]:
    """Its machines are others' by now."""
    return _wrong(
        world,
        "{0}: session {1} recorded {2} after its deadline",
        """
        SELECT h.machine_id, h.session_id, h.event FROM work_history h JOIN sessions s ON s.session_id = h.session_id
        WHERE h.event <> 'Expired' AND h.timestamp > s.deadline
        """,
    )


def every_started_work_ends_once(world: World) -> list[str]:
    """As finished, failed, canceled or expired; what has not ended yet is held by somebody."""
    return _wrong(
        world,
        "{0}: {2} work by {1} was started, {3} ended, {4} are held",
        f"""
        SELECT * FROM (
            SELECT machine_id, process,
                count(*) FILTER (WHERE event = 'Started') AS started,
                count(*) FILTER (WHERE event IN {_ENDS}) AS ended,
                (SELECT count(*) FROM work w WHERE w.machine_id = h.machine_id AND w.process = h.process) AS held
            FROM work_history h GROUP BY machine_id, process
        ) AS counted WHERE started <> ended + held
        """,
    )


def nobody_waits_for_ever(world: World) -> list[str]:
    """Let a machine be due for what it needs, at the latest when the longest wait is over."""
    return _wrong(
        world,
        "{0} needs {1}, but is due for {2} at {3}",
        f"""
        SELECT n.machine_id, n.process, d.process, d.not_before
        FROM machine_need n LEFT JOIN machine_due d ON d.machine_id = n.machine_id
        WHERE n.process IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = n.machine_id)
            AND (d.process IS NULL OR d.not_before > clock_timestamp() + interval '{LONGEST_WAIT}')
        """,
    )


def a_due_row_leads_to_what_is_needed(world: World) -> list[str]:
    """Let no row be for a process by which the loop that the machine waits for never finds it."""
    return _wrong(
        world,
        "{0} needs {1} and is due for {2}",
        """
        SELECT n.machine_id, n.process, d.process
        FROM machine_need n JOIN machine_due d ON d.machine_id = n.machine_id
        WHERE n.process IS NOT NULL AND d.process IS DISTINCT FROM n.process
        """,
    )


def a_paused_machine_is_not_touched(world: World) -> list[str]:
    """Somebody is at work on it."""
    return _wrong(
        world,
        "{0} is paused, and {1} was {2}",
        """
        SELECT h.machine_id, h.process, h.event FROM work_history h JOIN pauses x ON x.machine_id = h.machine_id
        WHERE h.event = 'Started' AND h.timestamp > x.created_at
        """,
    )


def a_machine_in_quarantine_is_not_touched(world: World) -> list[str]:
    """Recovery gave up on it, and an operator looks at it."""
    return _wrong(
        world,
        "{0} is in quarantine, and {1} was {2}",
        """
        SELECT h.machine_id, h.process, h.event
        FROM work_history h JOIN machine_quarantine z ON z.machine_id = h.machine_id
        WHERE h.event = 'Started' AND h.timestamp > z.quarantined_at
        """,
    )


def no_healthy_machine_is_rebooted(world: World) -> list[str]:
    """Do not do the worst that a fleet manager can do."""
    return [
        f"{device.id} was made to {', '.join(device.actions_taken)} although nothing was wrong with it"
        for device in world.api.devices()
        if device.actions_taken and device.id not in world.may_be_rebooted
    ]


def every_effect_is_explained_by_a_record(world: World) -> list[str]:
    """Whoever finds a machine, or a reboot, finds in the BMDB why it is there."""
    known = {str(row[0]) for row in world.fleet.sql("SELECT machine_id FROM machines")}
    names = {row[0]: row[1] for row in world.fleet.sql("SELECT provider_id, machine_id FROM machine_provided")}
    attempted = Counter(
        row[0]
        for row in world.fleet.sql(
            "SELECT machine_id FROM work_history WHERE process = 'ShepherdRecovery' AND event = 'Attempted'"
        )
    )
    found = []
    for device in world.api.devices():
        tokens = [tag.removeprefix(TOKEN_TAG) for tag in device.tags if tag.startswith(TOKEN_TAG)]
        found += [
            f"nothing in the BMDB explains {device.id} with token {token}" for token in tokens if token not in known
        ]
        if len(device.actions_taken) > attempted[names.get(device.id)]:
            found.append(
                f"{device.id} was acted on {len(device.actions_taken)} times, and fewer attempts are on record"
            )
    return found


def every_release_is_explained_by_a_record(world: World) -> list[str]:
    """Whoever finds a machine gone finds who wanted that, and why."""
    there = {device.id for device in world.api.devices() if device.state == "active"}
    records = (
        "SELECT machine_id FROM machine_release UNION SELECT machine_id FROM machine_departed WHERE how = 'Released'"
    )
    explained = {row[0] for row in world.fleet.sql(records)}
    return [
        f"{provider_id} was given back, and nothing in the BMDB tells of machine {machine_id}'s release"
        for provider_id, machine_id in world.to_release.items()
        if provider_id not in there and machine_id not in explained
    ]


def every_failure_names_its_cause(world: World) -> list[str]:
    """Tell an operator all that there is to go by."""
    return _wrong(
        world,
        "{0}: {1} failed for {2!r}",
        r"""
        SELECT machine_id, process, failed_cause FROM work_history
        WHERE event = 'Failed' AND (failed_cause IS NULL OR failed_cause !~ '^\w+: .')
        """,
    )


INVARIANTS: tuple[Callable[[World], list[str]], ...] = (
    no_machine_is_doubled,
    no_more_machines_than_the_limit,
    nobody_works_twice_on_a_machine,
    a_dead_session_commits_nothing,
    every_started_work_ends_once,
    nobody_waits_for_ever,
    a_due_row_leads_to_what_is_needed,
    a_paused_machine_is_not_touched,
    a_machine_in_quarantine_is_not_touched,
    no_healthy_machine_is_rebooted,
    every_effect_is_explained_by_a_record,
    every_release_is_explained_by_a_record,
    every_failure_names_its_cause,
)


def violations(world: World) -> list[str]:
    """Return what is wrong, each with the name of the promise that it breaks."""
    found = [f"{invariant.__name__}: {each}" for invariant in INVARIANTS for each in invariant(world)]
    return found + [f"leak: {each}" for each in world.fleet.leaks()]


def _wrong(world: World, text: str, query: str) -> list[str]:
    rows: list[list[Any]] = world.fleet.sql(query)
    return [text.format(*row) for row in rows]
