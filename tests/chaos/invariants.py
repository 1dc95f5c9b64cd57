"""
The invariants: one query for each promise, which must hold at all times, at whatever crash point a kill happens.

Each query returns a text for each violation, and no row if the promise is kept.
The queries read the database without the package's code, and the provider's
machines; they do not rely on what the functions report. All of them together
take one round trip, so that they can be checked after every effect.

Besides the tables, the queries read:

- ``device``: the provider's machines: id, active, ours, tokens, actions taken;
  may_act: the machine was unhealthy; made_now, acted_now: by the last effect, if
  the invariants are checked after every effect; decided_at: when its worker
  stopped before that effect, where other invocations continue meanwhile;
- ``session_seen``: the deadlines of all sessions that were ever observed;
- ``ready_seen``: since when each machine has been ready for a process and not locked by a live session, as observed
  after every effect;
- ``interrupted``: the steps that loops began and that interrupt machines, without those that were not taken;
- the parameters ``limit`` (machines, 0: none), ``steps_per_hour`` (the budget of recovery), ``to_release`` (machines
  by provider id that an operator releases) and ``margin`` (seconds by which clocks may be read in another order than
  transactions commit).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.chaos.stage.environment import Environment

LONGEST_WAIT = "7 hours"
"""Longer than any backoff, boot wait or session of the scenarios, and than a new machine has for its first agent."""
HEARTBEAT_TIMEOUT = "600 seconds"


INVARIANTS = {
    "no_machine_is_created_twice": """
    SELECT format('%s machines at the provider carry %s', count(*), token)
    FROM device d CROSS JOIN LATERAL unnest(d.tokens) AS t (token) GROUP BY token HAVING count(*) > 1
    UNION ALL
    SELECT format('%s is recorded for %s, and was made for %s', d.id, p.machine_id, d.tokens[1])
    FROM device d JOIN machine_provided p ON p.provider_id = d.id
    WHERE d.tokens[1] IS NOT NULL AND d.tokens[1] <> p.machine_id::text
    """,
    "no_more_machines_than_the_limit": """
    SELECT format('%s machines, the limit is %s', count(*), :limit::bigint)
    FROM device WHERE ours HAVING :limit::bigint BETWEEN 1 AND count(*) - 1
    """,
    "no_machine_has_two_live_works": """
    SELECT format('%s has %s live works at once', w.machine_id, count(*))
    FROM work w JOIN sessions s ON s.session_id = w.session_id
    WHERE s.deadline > clock_timestamp()
    GROUP BY w.machine_id HAVING count(*) > 1
    """,
    # Another session may have its machines by now. Canceling work that is still its own does no damage.
    "an_expired_session_commits_nothing": """
    SELECT format('%s: session %s recorded %s after its deadline', h.machine_id, h.session_id, h.event)
    FROM work_history h
    JOIN (SELECT session_id, deadline FROM sessions UNION SELECT session_id, deadline FROM session_seen) s
        ON s.session_id = h.session_id
    WHERE h.event NOT IN ('Expired', 'Canceled')
    GROUP BY h.machine_id, h.session_id, h.event, h.timestamp
    HAVING h.timestamp > max(s.deadline) + :margin::float8 * interval '1 second'
    UNION ALL
    SELECT format('session %s recorded an intent for machine %s after its deadline', s.session_id, i.machine_id)
    FROM machine_creation_intent i
    JOIN provisioner_lock l ON l.provider = i.provider
    JOIN sessions s ON s.session_id = l.session_id
    WHERE i.intended_at > s.deadline
    """,
    # As finished, failed, canceled, expired or recovered. Work that has not ended has a row in the table work.
    "every_started_work_ends_once": """
    SELECT format('%s: %s work of %s started, %s ended, %s still open', machine_id, started, process, ended, held)
    FROM (
        SELECT machine_id, process,
            count(*) FILTER (WHERE event = 'Started') AS started,
            count(*) FILTER (WHERE event IN ('Finished', 'Failed', 'Canceled', 'Expired', 'Recovered')) AS ended,
            (
                SELECT count(w.began_at) FROM work w WHERE w.machine_id = h.machine_id AND w.process = h.process
            ) AS held
        FROM work_history h GROUP BY machine_id, process
    ) AS counted WHERE started <> ended + held
    UNION ALL
    SELECT format('%s: session %s began %s, which has no event', w.machine_id, w.session_id, w.process)
    FROM work w
    WHERE w.began_at IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM work_history h
        WHERE h.machine_id = w.machine_id
            AND h.process = w.process
            AND h.session_id = w.session_id
            AND h.event = 'Started'
    )
    """,
    # One work takes one step, or none after a look. If it is counted twice, the machine is quarantined too early.
    "every_step_is_recorded_once": """
    SELECT format('%s: %s steps are recorded for one work', machine_id, count(*))
    FROM (
        SELECT machine_id, event, step,
            count(*) FILTER (WHERE event = 'Started') OVER (PARTITION BY machine_id ORDER BY timestamp) AS work
        FROM work_history WHERE process = 'ShepherdRecovery'
    ) AS numbered
    WHERE event = 'Attempted' OR event = 'Looked' AND step IS NOT NULL
    GROUP BY machine_id, work HAVING count(*) > 1
    """,
    # A machine is due for the process that it needs, not later than after the longest wait.
    "no_machine_waits_without_end": f"""
    SELECT format('%s needs %s, but is due for it at %s', machine_id, process, greatest(due_at, backoff_until))
    FROM machine_eligibility
    WHERE process IS NOT NULL
        AND paused_until IS NULL
        AND (NOT overdue OR due_at <> 'infinity') -- no agent start has failed: its recovery is not needed yet
        AND coalesce(greatest(due_at, backoff_until), 'infinity')
            > clock_timestamp() + interval '{LONGEST_WAIT}'
    """,
    # By a tick that had room for it: the machine would wait for another one.
    "no_ready_machine_is_left": """
    SELECT format('%s is ready for %s since %s, the tick of %s left it', e.machine_id, e.process, r.since, began_at)
    FROM ready_seen r
    JOIN machine_eligibility e ON e.machine_id = r.machine_id AND e.process = r.process AND e.ready
    JOIN ticks t ON t.provider = e.provider AND t.began_at > r.since
    WHERE (t.loop, r.process) IN (('initializer', 'ShepherdAgentStart'), ('recoverer', 'ShepherdRecovery'))
        AND t.outcome = 'Succeeded'
        AND (t.counts->>'incomplete')::bigint = 0
    """,
    "a_paused_machine_is_not_touched": """
    SELECT format('%s is paused, and %s was %s', h.machine_id, h.process, h.event)
    FROM work_history h JOIN pauses x ON x.machine_id = h.machine_id
    WHERE h.event = 'Started' AND h.timestamp > x.created_at + :margin::float8 * interval '1 second'
    """,
    "a_quarantined_machine_is_not_touched": """
    SELECT format('%s is in quarantine, and %s was %s', h.machine_id, h.process, h.event)
    FROM work_history h JOIN machine_quarantine z ON z.machine_id = h.machine_id
    WHERE h.event = 'Started' AND h.timestamp > z.quarantined_at
    """,
    "no_healthy_machine_is_rebooted": f"""
    SELECT format('%s was interrupted %s times although it was healthy', id, actions)
    FROM device WHERE actions > 0 AND NOT may_act
    UNION ALL
    SELECT format('%s was claimed for recovery at %s, heartbeat at %s', w.machine_id, h.at, b.agent_heartbeat_at)
    FROM work w
    JOIN machine_agent_heartbeat b ON b.machine_id = w.machine_id
    JOIN machine_agent_started a ON a.machine_id = w.machine_id AND a.agent_started_at <= b.agent_heartbeat_at
    CROSS JOIN LATERAL (
        SELECT max(timestamp) AS at FROM work_history h
        WHERE h.machine_id = w.machine_id AND h.process = w.process AND h.event = 'Started'
    ) AS h
    WHERE w.process = 'ShepherdRecovery'
        AND b.agent_heartbeat_at BETWEEN h.at - interval '{HEARTBEAT_TIMEOUT}' + interval '1 second'
            AND h.at - :margin::float8 * interval '1 second'
    UNION ALL
    SELECT format('%s was interrupted after a heartbeat at %s', d.id, b.agent_heartbeat_at)
    FROM device d
    JOIN machine_provided p ON p.provider_id = d.id
    JOIN machine_agent_heartbeat b ON b.machine_id = p.machine_id
    JOIN machine_agent_started a ON a.machine_id = p.machine_id AND a.agent_started_at <= b.agent_heartbeat_at
    WHERE d.acted_now
        AND b.agent_heartbeat_at > clock_timestamp() - interval '{HEARTBEAT_TIMEOUT}' + interval '1 second'
        AND b.agent_heartbeat_at < coalesce(d.decided_at, clock_timestamp())
    """,
    # By loops, in an hour. If many machines seem dead at once, the fault is probably elsewhere.
    "no_more_machines_are_interrupted_than_the_budget_permits": """
    SELECT format('%s machines were interrupted in an hour, the last one at %s', count(DISTINCT b.machine_id), a.at)
    FROM interrupted a JOIN interrupted b ON b.at BETWEEN a.at - interval '1 hour' AND a.at
    GROUP BY a.at HAVING count(DISTINCT b.machine_id) > :steps_per_hour::bigint
    """,
    "every_effect_is_explained_by_a_record": """
    SELECT format('nothing in the BMDB explains %s with token %s', d.id, token)
    FROM device d CROSS JOIN LATERAL unnest(d.tokens) AS t (token)
    WHERE NOT EXISTS (SELECT 1 FROM machines m WHERE m.machine_id::text = token)
    UNION ALL
    SELECT format('%s was interrupted %s times, and fewer attempts are recorded', d.id, d.actions)
    FROM device d JOIN machine_provided p ON p.provider_id = d.id
    WHERE d.actions > (
        SELECT count(*) FILTER (WHERE h.event = 'Attempted') - count(*) FILTER (WHERE h.event = 'NotTaken')
        FROM work_history h
        WHERE h.machine_id = p.machine_id AND h.process = 'ShepherdRecovery'
    )
    """,
    # Quarantine comes only after a step that may have been taken, or that the provider refused for the machine.
    "no_machine_is_quarantined_untried": r"""
    SELECT format('%s is quarantined without any attempt', z.machine_id)
    FROM machine_quarantine z
    JOIN work_history q ON q.machine_id = z.machine_id AND q.event = 'Quarantined'
    WHERE (
        SELECT count(*) FILTER (WHERE h.event = 'Attempted' AND h.step <> 'quarantine')
            - count(*) FILTER (
                WHERE h.event = 'NotTaken' AND h.step <> 'quarantine'
                    AND coalesce(h.kind, '') NOT IN ('provider-refused', 'machine-not-found', 'not-supported')
                    AND NOT (h.fault = 'provider' AND (
                        SELECT count(DISTINCT o.timestamp < h.timestamp) = 2
                        FROM work_history o
                        WHERE o.event = 'Finished' AND o.step IS NOT NULL AND o.kind IS NULL
                            AND o.machine_id <> h.machine_id
                            AND o.timestamp BETWEEN h.timestamp - '1 hour'::interval AND h.timestamp + '1 hour'
                    ))
            )
        FROM work_history h WHERE h.machine_id = z.machine_id
    ) <= 0
    """,
    "every_release_is_explained_by_a_record": """
    SELECT format('%s was released, and the BMDB has no record of the release of machine %s', r.key, r.value)
    FROM jsonb_each_text(:to_release::jsonb) r
    WHERE NOT EXISTS (SELECT 1 FROM device d WHERE d.id = r.key AND d.active)
        AND NOT EXISTS (SELECT 1 FROM machine_release m WHERE m.machine_id::text = r.value)
        AND NOT EXISTS (
            SELECT 1 FROM machine_tombstone m WHERE m.machine_id::text = r.value AND m.how = 'Released'
        )
    """,
    # After a session has expired, the next one may have had the same effect already.
    "no_effect_without_a_live_session": """
    SELECT format('%s was interrupted, and no live session has work on it', d.id)
    FROM device d JOIN machine_provided p ON p.provider_id = d.id
    WHERE d.acted_now AND NOT EXISTS (
        SELECT 1 FROM work w JOIN sessions s ON s.session_id = w.session_id
        WHERE w.machine_id = p.machine_id AND w.process = 'ShepherdRecovery' AND s.deadline > clock_timestamp()
    )
    UNION ALL
    SELECT format('%s was created, and no Provisioner has a live session', d.id)
    FROM device d
    WHERE d.made_now AND d.tokens[1] IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM provisioner_lock l JOIN sessions s ON s.session_id = l.session_id
        WHERE s.deadline > clock_timestamp()
    )
    """,
    "every_failure_names_its_cause": r"""
    SELECT format('%s: %s failed for "%s"', machine_id, process, failed_cause) FROM work_history
    WHERE event = 'Failed' AND (kind IS NULL OR fault IS NULL OR coalesce(failed_cause, '') = '')
    """,
    "every_tick_is_recorded_when_its_session_ends": """
    SELECT format('the session %s is open, and its tick has ended', session_id)
    FROM ticks WHERE session_id IN (SELECT session_id FROM sessions)
    UNION ALL
    SELECT DISTINCT format('the session %s of %s is gone, and there is no tick', session_id, process)
    FROM work_history
    WHERE event = 'Started'
        AND process IN ('ShepherdAgentStart', 'ShepherdRecovery')
        AND session_id IS NOT NULL
        AND failed_cause IS DISTINCT FROM 'an operator: chaos' -- a command is no tick
        AND session_id NOT IN (SELECT session_id FROM sessions UNION SELECT session_id FROM ticks)
    UNION ALL
    SELECT format('the tick %s of the %s has fewer rows in the history than in %s', session_id, loop, counts)
    FROM ticks t
    WHERE (counts->>'finished')::bigint > (
        SELECT count(*) FROM work_history h WHERE h.session_id = t.session_id AND h.event <> 'Started'
    )
    """,
    "related_rows_come_and_go_together": """
    SELECT format('work by %s without a session', session_id)
    FROM work WHERE session_id NOT IN (SELECT session_id FROM sessions)
    UNION ALL
    SELECT format('%s is provided and still intended', machine_id)
    FROM machine_creation_intent WHERE machine_id IN (SELECT machine_id FROM machine_provided)
    UNION ALL
    SELECT format('%s was decommissioned, and still has %s', x.machine_id, y.what)
    FROM machine_tombstone x
    JOIN (
        SELECT machine_id, 'a provider' AS what FROM machine_provided
        UNION ALL SELECT machine_id, 'an agent' FROM machine_agent_started
        UNION ALL SELECT machine_id, 'a heartbeat' FROM machine_agent_heartbeat
        UNION ALL SELECT machine_id, 'a wanted installation' FROM machine_os_installation_request
        UNION ALL SELECT machine_id, 'a pause' FROM pauses
    ) AS y ON y.machine_id = x.machine_id
    """,
}

SEEN = """
CREATE TEMPORARY TABLE IF NOT EXISTS session_seen (session_id uuid PRIMARY KEY, deadline timestamptz);
CREATE TEMPORARY TABLE IF NOT EXISTS ready_seen
    (machine_id uuid, process text, since timestamptz, PRIMARY KEY (machine_id, process))
"""
"""In the connection that the invariants are checked over."""

_SEE = """
WITH sessions_now AS (
    INSERT INTO session_seen SELECT session_id, deadline FROM sessions
    ON CONFLICT (session_id) DO UPDATE SET deadline = excluded.deadline
),
ready_now AS MATERIALIZED (
    SELECT DISTINCT machine_id, process FROM machine_eligibility
    WHERE ready AND machine_id NOT IN (
        SELECT machine_id FROM work JOIN sessions USING (session_id) WHERE deadline > clock_timestamp()
    )
),
not_ready_now AS (
    DELETE FROM ready_seen WHERE (machine_id, process) NOT IN (SELECT machine_id, process FROM ready_now)
)
INSERT INTO ready_seen SELECT machine_id, process, clock_timestamp() FROM ready_now ON CONFLICT DO NOTHING
"""
_ALL = """
WITH device AS (
    SELECT * FROM jsonb_to_recordset(:devices::jsonb)
    AS d (
        id text, active boolean, ours boolean, tokens text[], actions bigint, may_act boolean, made_now boolean,
        acted_now boolean, decided_at timestamptz
    )
),
interrupted AS (
    SELECT h.machine_id, h.timestamp AS at
    FROM work_history h
    WHERE h.event = 'Attempted'
        AND h.step IN ('reboot', 'power-cycle', 'reinstall')
        AND NOT EXISTS (
            SELECT 1 FROM work_history n
            WHERE n.machine_id = h.machine_id
                AND n.session_id = h.session_id
                AND (n.event = 'NotTaken' OR n.failed_cause = 'an operator: chaos')
        )
)
""" + "\nUNION ALL\n".join(
    [
        "SELECT NULL AS name, pg_current_snapshot()::text AS fault",
        *(f"SELECT '{name}', format FROM ({broken}) AS broken" for name, broken in INVARIANTS.items()),
    ]
)


def violations(environment: Environment, *, watched: bool = False) -> list[str]:
    """
    Return all violations, each with the name of its invariant.

    *watched*: this is called after every effect, so that sessions that were deleted since can be judged too, and
    what ticks left.
    """
    devices = environment.devices(watched=watched)
    parameters: dict[str, Any] = {
        "devices": json.dumps(devices),
        "to_release": json.dumps(environment.to_release, default=str),
        "limit": environment.limit,
        "steps_per_hour": environment.steps_per_hour,
        "margin": environment.margin_seconds,
    }
    if watched:
        # Most effects read, or are inside a transaction: the snapshot is another only after one that changed anything.
        now = (environment.fleet.ask("SELECT pg_current_snapshot()::text")[0][0], parameters)
        if environment.examined is not None and environment.examined[:2] == now:
            return environment.examined[2]
        environment.fleet.ask(_SEE)
    (_, snapshot), *rows = environment.fleet.ask(_ALL, **parameters)
    found = [f"{name}: {fault}" for name, fault in rows]
    environment.actions_seen = {device["id"]: device["actions"] for device in devices} if watched else None
    environment.examined = (snapshot, parameters, found) if watched else None
    return found
