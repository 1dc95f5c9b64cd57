"""
What must hold at all times, whoever died where: one query for each promise.

Each returns what is wrong, in words; no row if the promise is kept. They look
at the database past the product's code, and at the provider's machines, never
at what the functions say of themselves. All of them together are one round
trip, so that they can be asked at every point.

What the queries see besides the tables: ``device`` (the provider's machines:
id, active, ours, tokens, actions taken, may_act: something was wrong with it; made_now,
acted_now: by the last effect, if this is asked after every effect; decided_at: when its worker came to stand before
that, where others go on in between),
``session_seen`` (when every session that was ever observed dies, or died), and
the parameters ``limit`` (machines, 0: none), ``to_release`` (machines by
provider id that an operator gives back) and ``margin`` (seconds by which clocks
may be read in another order than transactions commit).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from shepherd_core.providers.equinix.objects import TOKEN_TAG

from tests.support.bmdb.capacity import PREFIX

if TYPE_CHECKING:
    from tests.chaos.stage.environment import World

LONGEST_WAIT = "5 hours"
"""More than any backoff, settle time or session of the scenarios."""
SILENCE = "600 seconds"
"""As long as an agent may say nothing, in all scenarios."""

_SHEPHERD = "('ShepherdAccess', 'ShepherdAgentStart', 'ShepherdRecovery')"
_ENDS = "('Finished', 'Failed', 'Canceled', 'Expired', 'Recovered')"


class Invariant(NamedTuple):
    """One promise."""

    name: str
    why: str
    broken: str
    """The query for what breaks it: a text for each."""


INVARIANTS = (
    Invariant(
        "no_machine_is_doubled",
        "One machine at the provider for one in the BMDB: nobody pays for a machine that nobody uses.",
        """
        SELECT format('%s machines at the provider carry %s', count(*), token)
        FROM device d CROSS JOIN LATERAL unnest(d.tokens) AS t (token) GROUP BY token HAVING count(*) > 1
        UNION ALL
        SELECT format('%s is recorded for %s, and was made for %s', d.id, p.machine_id, d.tokens[1])
        FROM device d JOIN machine_provided p ON p.provider_id = d.id
        WHERE d.tokens[1] IS NOT NULL AND d.tokens[1] <> p.machine_id::text
        """,
    ),
    Invariant(
        "no_more_machines_than_the_limit",
        "The limit is somebody's money.",
        """
        SELECT format('%s machines, the limit is %s', count(*), :limit::bigint)
        FROM device WHERE ours HAVING :limit::bigint BETWEEN 1 AND count(*) - 1
        """,
    ),
    Invariant(
        "nobody_works_twice_on_a_machine",
        "A machine has one live work at most, whatever the process.",
        f"""
        SELECT format('%s has %s live works at once', w.machine_id, count(*))
        FROM work w JOIN sessions s ON s.session_id = w.session_id
        WHERE w.process IN {_SHEPHERD} AND s.deadline > clock_timestamp()
        GROUP BY w.machine_id HAVING count(*) > 1
        """,
    ),
    Invariant(
        "a_dead_session_commits_nothing",
        "Its machines are others' by now. That it gives back what nobody took from it is no harm.",
        """
        SELECT format('%s: session %s recorded %s after its deadline', h.machine_id, h.session_id, h.event)
        FROM work_history h
        JOIN (SELECT session_id, deadline FROM sessions UNION SELECT session_id, deadline FROM session_seen) s
            ON s.session_id = h.session_id
        WHERE h.event NOT IN ('Expired', 'Canceled')
        GROUP BY h.machine_id, h.session_id, h.event, h.timestamp
        HAVING h.timestamp > max(s.deadline) + :margin::float8 * interval '1 second'
        UNION ALL
        SELECT format('machine %s was decided on by session %s after its deadline', i.machine_id, s.session_id)
        FROM machine_creation_intent i
        JOIN provisioner_lock l ON l.provider = i.provider
        JOIN sessions s ON s.session_id = l.session_id
        WHERE i.intended_at > s.deadline
        """,
    ),
    Invariant(
        "every_started_work_ends_once",
        "As finished, failed, canceled, expired or recovered; what has not ended yet is held by somebody.",
        f"""
        SELECT format('%s: %s work by %s was started, %s ended, %s are held', machine_id, started, process, ended, held)
        FROM (
            SELECT machine_id, process,
                count(*) FILTER (WHERE event = 'Started') AS started,
                count(*) FILTER (WHERE event IN {_ENDS}) AS ended,
                (SELECT count(*) FROM work w WHERE w.machine_id = h.machine_id AND w.process = h.process) AS held
            FROM work_history h GROUP BY machine_id, process
        ) AS counted WHERE started <> ended + held
        """,
    ),
    Invariant(
        "every_step_is_recorded_once",
        "One work takes one step of recovery; counted twice, the machine is in quarantine too early.",
        """
        SELECT format('%s: %s steps are on record for one work', machine_id, count(*))
        FROM (
            SELECT machine_id, event,
                count(*) FILTER (WHERE event = 'Started') OVER (PARTITION BY machine_id ORDER BY timestamp) AS work
            FROM work_history WHERE process = 'ShepherdRecovery'
        ) AS numbered
        WHERE event = 'Attempted' GROUP BY machine_id, work HAVING count(*) > 1
        """,
    ),
    Invariant(
        "nobody_waits_for_ever",
        "A machine is due for what it needs, at the latest when the longest wait is over.",
        f"""
        SELECT format('%s needs %s, but is due for %s at %s', n.machine_id, n.process, d.process, d.not_before)
        FROM machine_need n LEFT JOIN machine_due d ON d.machine_id = n.machine_id
        WHERE n.process IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = n.machine_id)
            AND (d.process IS NULL OR d.not_before > clock_timestamp() + interval '{LONGEST_WAIT}')
        UNION ALL
        SELECT format('%s was told to come back, and nobody is to look whether it did', w.machine_id)
        FROM machine_process_needs w JOIN machine_due d ON d.machine_id = w.machine_id
        WHERE w.overdue AND d.recovery_not_before IS NULL
        """,
    ),
    Invariant(
        "a_due_row_leads_to_what_is_needed",
        "No row is for a process by which the loop that the machine waits for never finds it.",
        """
        SELECT format('%s needs %s and is due for %s', n.machine_id, n.process, d.process)
        FROM machine_need n JOIN machine_due d ON d.machine_id = n.machine_id
        WHERE n.process IS NOT NULL AND d.process IS DISTINCT FROM n.process
        """,
    ),
    Invariant(
        "a_paused_machine_is_not_touched",
        "Somebody is at work on it.",
        """
        SELECT format('%s is paused, and %s was %s', h.machine_id, h.process, h.event)
        FROM work_history h JOIN pauses x ON x.machine_id = h.machine_id
        WHERE h.event = 'Started' AND h.timestamp > x.created_at + :margin::float8 * interval '1 second'
        """,
    ),
    Invariant(
        "a_machine_in_quarantine_is_not_touched",
        "Recovery gave up on it, and an operator looks at it.",
        """
        SELECT format('%s is in quarantine, and %s was %s', h.machine_id, h.process, h.event)
        FROM work_history h JOIN machine_quarantine z ON z.machine_id = h.machine_id
        WHERE h.event = 'Started' AND h.timestamp > z.quarantined_at
        """,
    ),
    Invariant(
        "no_healthy_machine_is_rebooted",
        "The worst that a fleet manager can do.",
        f"""
        SELECT format('%s was acted on %s times although nothing was wrong with it', id, actions)
        FROM device WHERE actions > 0 AND NOT may_act
        UNION ALL
        SELECT format('%s was taken for recovery at %s, and heard at %s', w.machine_id, h.at, b.agent_heartbeat_at)
        FROM work w
        JOIN machine_agent_heartbeat b ON b.machine_id = w.machine_id
        JOIN machine_agent_started a ON a.machine_id = w.machine_id AND a.agent_started_at <= b.agent_heartbeat_at
        CROSS JOIN LATERAL (
            SELECT max(timestamp) AS at FROM work_history h
            WHERE h.machine_id = w.machine_id AND h.process = w.process AND h.event = 'Started'
        ) AS h
        WHERE w.process = 'ShepherdRecovery'
            AND b.agent_heartbeat_at BETWEEN h.at - interval '{SILENCE}' + interval '1 second'
                AND h.at - :margin::float8 * interval '1 second'
        UNION ALL
        SELECT format('%s was acted on, and had been heard at %s', d.id, b.agent_heartbeat_at)
        FROM device d
        JOIN machine_provided p ON p.provider_id = d.id
        JOIN machine_agent_heartbeat b ON b.machine_id = p.machine_id
        JOIN machine_agent_started a ON a.machine_id = p.machine_id AND a.agent_started_at <= b.agent_heartbeat_at
        WHERE d.acted_now
            AND b.agent_heartbeat_at > clock_timestamp() - interval '{SILENCE}' + interval '1 second'
            AND b.agent_heartbeat_at < coalesce(d.decided_at, clock_timestamp())
        """,
    ),
    Invariant(
        "recovery_is_held_back_as_was_said",
        "Too many machines are silent for it to be their fault; an operator lets as many through as he said.",
        """
        SELECT format('recovery is held back, and %s was %s for it', h.machine_id, h.event)
        FROM work_history h
        JOIN machine_provided p ON p.machine_id = h.machine_id
        JOIN recovery_suspensions x ON x.provider = p.provider AND x.location IN ('', p.provider_location)
        WHERE h.process = 'ShepherdRecovery'
            AND h.event = 'Started'
            AND x.ended_at IS NULL
            AND h.timestamp > x.suspended_at + :margin::float8 * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM recovery_override_machines m WHERE m.machine_id = h.machine_id)
        UNION ALL
        SELECT format('%s machines were let through, %s are counted and %s allowed', count(*), o.used, o.machines)
        FROM recovery_overrides o
        JOIN recovery_override_machines m ON m.override_id = o.override_id
        GROUP BY o.location, o.used, o.machines
        HAVING count(*) > o.machines OR count(*) <> o.used
        """,
    ),
    Invariant(
        "every_effect_is_explained_by_a_record",
        "Whoever finds a machine, or a reboot, finds in the BMDB why it is there.",
        """
        SELECT format('nothing in the BMDB explains %s with token %s', d.id, token)
        FROM device d CROSS JOIN LATERAL unnest(d.tokens) AS t (token)
        WHERE NOT EXISTS (SELECT 1 FROM machines m WHERE m.machine_id::text = token)
        UNION ALL
        SELECT format('%s was acted on %s times, and fewer attempts are on record', d.id, d.actions)
        FROM device d JOIN machine_provided p ON p.provider_id = d.id
        WHERE d.actions > (
            SELECT count(*) FILTER (WHERE h.event = 'Attempted') - count(*) FILTER (WHERE h.event = 'NotTaken')
            FROM work_history h
            WHERE h.machine_id = p.machine_id AND h.process = 'ShepherdRecovery'
        )
        """,
    ),
    Invariant(
        "nobody_is_given_up_untried",
        "Without a step that may have been taken, or that the provider refused for it, a machine is not beyond hope.",
        r"""
        SELECT format('%s is in quarantine, and nothing was tried on it', z.machine_id)
        FROM machine_quarantine z
        JOIN work_history q ON q.machine_id = z.machine_id AND q.event = 'Quarantined'
        WHERE (
            SELECT count(*) FILTER (WHERE h.event = 'Attempted' AND h.step <> 'quarantine')
                - count(*) FILTER (
                    WHERE h.event = 'NotTaken' AND h.step <> 'quarantine'
                        AND h.failed_cause !~ '^(ProviderRefused|MachineNotFound|NotSupported): '
                )
            FROM work_history h WHERE h.machine_id = z.machine_id
        ) <= 0
        """,
    ),
    Invariant(
        "every_release_is_explained_by_a_record",
        "Whoever finds a machine gone finds who wanted that, and why.",
        """
        SELECT format('%s was given back, and nothing in the BMDB tells of machine %s''s release', r.key, r.value)
        FROM jsonb_each_text(:to_release::jsonb) r
        WHERE NOT EXISTS (SELECT 1 FROM device d WHERE d.id = r.key AND d.active)
            AND NOT EXISTS (SELECT 1 FROM machine_release m WHERE m.machine_id::text = r.value)
            AND NOT EXISTS (
                SELECT 1 FROM machine_tombstone m WHERE m.machine_id::text = r.value AND m.how = 'Released'
            )
        """,
    ),
    Invariant(
        "no_effect_without_a_live_session",
        "Whoever was taken for dead has a successor, who may have done it already.",
        """
        SELECT format('%s was acted on, and nobody alive has work on it', d.id)
        FROM device d JOIN machine_provided p ON p.provider_id = d.id
        WHERE d.acted_now AND NOT EXISTS (
            SELECT 1 FROM work w JOIN sessions s ON s.session_id = w.session_id
            WHERE w.machine_id = p.machine_id AND w.process = 'ShepherdRecovery' AND s.deadline > clock_timestamp()
        )
        UNION ALL
        SELECT format('%s was made, and no Provisioner is alive', d.id)
        FROM device d
        WHERE d.made_now AND d.tokens[1] IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM provisioner_lock l JOIN sessions s ON s.session_id = l.session_id
            WHERE s.deadline > clock_timestamp()
        )
        """,
    ),
    Invariant(
        "every_failure_names_its_cause",
        "It is all that an operator has to go by.",
        r"""
        SELECT format('%s: %s failed for "%s"', machine_id, process, failed_cause) FROM work_history
        WHERE event = 'Failed' AND (failed_cause IS NULL OR failed_cause !~ '^\w+: .')
        """,
    ),
    Invariant(
        "nothing_is_left_behind",
        "Rows that belong together come and go together.",
        """
        SELECT format('work by %s without a session', session_id)
        FROM work WHERE session_id NOT IN (SELECT session_id FROM sessions)
        UNION ALL
        SELECT format('%s is due, but not provided', machine_id)
        FROM machine_due WHERE machine_id NOT IN (SELECT machine_id FROM machine_provided)
        UNION ALL
        SELECT format('%s is provided, but never due', machine_id)
        FROM machine_provided WHERE machine_id NOT IN (SELECT machine_id FROM machine_due)
        UNION ALL
        SELECT format('%s is provided and still intended', machine_id)
        FROM machine_creation_intent WHERE machine_id IN (SELECT machine_id FROM machine_provided)
        UNION ALL
        SELECT format('%s departed, and still has %s', x.machine_id, y.what)
        FROM machine_tombstone x
        JOIN (
            SELECT machine_id, 'a provider' AS what FROM machine_provided
            UNION ALL SELECT machine_id, 'an agent' FROM machine_agent_started
            UNION ALL SELECT machine_id, 'a heartbeat' FROM machine_agent_heartbeat
            UNION ALL SELECT machine_id, 'a wanted installation' FROM machine_os_installation_request
            UNION ALL SELECT machine_id, 'a pause' FROM pauses
        ) AS y ON y.machine_id = x.machine_id
        """,
    ),
)

SEEN = "CREATE TEMPORARY TABLE IF NOT EXISTS session_seen (session_id uuid PRIMARY KEY, deadline timestamptz)"
"""In the connection that the invariants are asked over."""

_SEE = """
INSERT INTO session_seen SELECT session_id, deadline FROM sessions
ON CONFLICT (session_id) DO UPDATE SET deadline = excluded.deadline
"""
_DEVICES = """
WITH device AS (
    SELECT * FROM jsonb_to_recordset(:devices::jsonb)
    AS d (
        id text, active boolean, ours boolean, tokens text[], actions bigint, may_act boolean, made_now boolean,
        acted_now boolean, decided_at timestamptz
    )
)
"""
_ALL = _DEVICES + "\nUNION ALL\n".join(
    f"SELECT '{each.name}' AS name, format AS fault FROM ({each.broken}) AS broken" for each in INVARIANTS
)


def violations(world: World, *, watched: bool = False) -> list[str]:
    """
    Return what is wrong, each with the name of the promise that it breaks.

    *watched*: this is asked after every effect, so that also sessions that are gone by now can be judged.
    """
    if watched:
        world.ask(_SEE)
    devices = _devices(world, watched=watched)
    rows = world.ask(
        _ALL,
        devices=json.dumps(devices),
        to_release=json.dumps(world.to_release, default=str),
        limit=world.limit,
        margin=world.margin_seconds,
    )
    world.actions_seen = {device["id"]: device["actions"] for device in devices} if watched else None
    return [f"{name}: {fault}" for name, fault in rows]


def _devices(world: World, *, watched: bool) -> list[dict[str, Any]]:
    seen = world.actions_seen if watched else None
    return [
        {
            "id": device.id,
            "active": device.state == "active",
            "ours": device.hostname.startswith(PREFIX),
            "tokens": [tag.removeprefix(TOKEN_TAG) for tag in device.tags if tag.startswith(TOKEN_TAG)],
            "actions": len(device.actions_taken),
            "may_act": device.id in world.may_be_rebooted,
            "made_now": seen is not None and device.id not in seen,
            "acted_now": seen is not None and len(device.actions_taken) > seen.get(device.id, 0),
            "decided_at": world.decided.get(device.id),
        }
        for device in world.api.devices()
    ]
