"""The cure of each kind of failure. A test compares them with the table of docs/failures.md."""

from collections.abc import Iterable

CURES = {
    "config-error": "The text lists every fault; correct the document or the deployment, see docs/settings.",
    "event-invalid": "Compare the event with the samples in `events/`.",
    "time-limit-exceeded": "Once: nothing. Often: look at the provider and at the way to the machine.",
    "answer-undelivered": (
        "Check that the function can reach S3. Invoke it again with the same event, or wait until "
        "CloudFormation gives up."
    ),
    "bmdb-unavailable": "Look at the database. The loops resume by themselves.",
    "bmdb-untrusted": "Correct `SHEPHERD_BMDB_HOST`, or name the CAs in `SHEPHERD_BMDB_CA_SOURCE`.",
    "clock-differs": (
        "Find out which clock is wrong (`date -u`), and correct it, by NTP. Then everything goes on by itself; nothing "
        "needs to be repaired."
    ),
    "serialization-conflict": "Look for long transactions of other clients.",
    "commit-unknown": (
        "Once: nothing, the next invocation reads the outcome. Often: find out why commits take so long, at "
        "the database's disk or its synchronous standby."
    ),
    "statement-failed": "Check the permissions of the user; otherwise report it as a defect of Shepherd.",
    "schema-mismatch": "Run `shepherdctl db migrate`, or deploy the code that belongs to the database.",
    "migration-refused": "Restore the migration file; put the change into a new migration.",
    "roles-refused": "Give the owner these rights, or create the users yourself: docs/how-to/database.",
    "session-expired": "Once: nothing. Often: look at the database, which was slow or not reached for a minute.",
    "no-longer-due": "Nothing.",
    "held-back": "Nothing; `shepherdctl status` says why the budget is small.",
    "machine-unknown": "Give more of the id.",
    "work-conflict": "Wait; `shepherdctl machine show ID` says until when.",
    "provider-unavailable": (
        "Nothing, unless it lasts: `shepherdctl run provisioner --dry-run` asks it now, and says what it answers."
    ),
    "provider-not-asked": "Nothing, unless it lasts; the text says how the provider failed.",
    "provider-refused": "The provider's answer is in the text.",
    "provider-unusable": "The provider's answer is in the text; correct the credential or the settings.",
    "provider-forbidden": "The provider's answer is in the text; grant the credential the permission.",
    "machine-not-found": "Look at the provider; the Provisioner sets the machine aside.",
    "capacity-taken": "Once: nothing. Often: do not share a project without a prefix of your own.",
    "not-supported": (
        "In recovery: nothing, the next step of the policy is taken. The text says what the provider can do; "
        "docs/providers compares the providers."
    ),
    "listing-invalid": "Nothing, unless it lasts; for `static`: correct the list, the text names the entries.",
    "drift-limit-exceeded": (
        "Check the configured project, prefix and database. After a restore from a backup: `shepherdctl machine adopt "
        "--all --class foreign`; see docs/how-to/drift."
    ),
    "no-address": (
        "Nothing while it is being provisioned. Later: have the provider report one, then `shepherdctl "
        "machine retry ID`."
    ),
    "ssh-refused": "Nothing while it boots; then look at the machine.",
    "ssh-timed-out": "Look at the machine and the network between (security groups, routes).",
    "ssh-authentication-failed": (
        "Check that it was created with the key in `SHEPHERD_SSH_KEY_PARAMETER`. `Please login as the user "
        "…`: set `SHEPHERD_SSH_USER`, or allow root to log in. Then `shepherdctl machine retry ID`."
    ),
    "host-key-unknown": (
        "Read the key over a path that nobody can tamper with (console, installer), and pin it: `shepherdctl "
        "machine pin-host-key ID KEY`, or `HostKey` in the list of machines."
    ),
    "ssh-host-key-changed": (
        "Find out why. If it was reinstalled: `shepherdctl machine pin-host-key ID KEY --replace` with its "
        "new key, or `shepherdctl machine forget-host-key ID` to trust the host that answers next; with "
        "`ec2`, where the provider knows the key, correct it there (tag `shepherd-host-key`)."
    ),
    "ssh-connection-lost": "Nothing, unless it repeats.",
    "ssh-failed": (
        "The text says at which step; if it repeats, look at the machine. "
        "`no acceptable …`: see docs/failures#ssh-algorithms."
    ),
    "ssh-misbehaved": (
        "Find out what runs there; do not trust the machine. It cannot harm others "
        "(docs/decisions#25-process-for-each-machine)."
    ),
    "ssh-out-of-resources": (
        "Nothing, unless it repeats: then lower the loop's concurrency, or give the function more memory."
    ),
    "ssh-fork-server-lost": "Nothing, unless it repeats: then the function has too little memory.",
    "ssh-upload-failed": "Look at the machine's disk, and at `SHEPHERD_AGENT_PATH`.",
    "agent-exited": "The end of its output is in the text, all of it in the log.",
    "malformed-answer": "Check that it is the right executable for the machine.",
    "wrong-key-length": "Check that the agent speaks this protocol.",
    "wrong-init-message": "Check that the agent speaks this protocol.",
    "agent-refused": "The error is in the text.",
    "secret-missing": (
        "Create it (the SSH key: `shepherdctl ssh-key create`), or correct the policy; the text says which."
    ),
    "secret-unavailable": "Nothing, unless it lasts.",
    "agent-mismatch": "If you uploaded a new agent, set its SHA-256. If not, find out who did.",
    "source-invalid": "The text says what is wrong; correct the setting.",
    "source-missing": "Correct the setting, or create the file or object.",
    "source-unavailable": "Nothing, unless it lasts.",
    "function-died": (
        "Once: nothing. In quarantine: find out what the machine does to the function, then `shepherdctl "
        "machine unquarantine`; see docs/policy."
    ),
    "steps-used-up": (
        "Look at the machine; `shepherdctl history ID` says what was tried. When it is repaired: `shepherdctl machine "
        "unquarantine`."
    ),
    "recovered-often": (
        "Compare when it fails: `shepherdctl history ID`. Look at its hardware, and at the network between; "
        "`shepherdctl pause --machine ID --reason TEXT` stops its recovery."
    ),
    "reports-again": (
        "If the machine is well: `shepherdctl machine unquarantine ID --reason TEXT`, or with `--cause reports-again` "
        "all of them."
    ),
    "provisioning-failed": (
        "It keeps its place until it is released (`shepherdctl machine release ID`) or the provider installed it again."
    ),
    "unexpected": "Report it as a defect of Shepherd; the log has the traceback.",
}


def cures(kinds: Iterable[str | None]) -> list[str]:
    """Return the cures, a line for each of *kinds*."""
    return [f"{kind}: {CURES[kind]} (docs/failures#{kind})" for kind in dict.fromkeys(kinds) if kind is not None]


def told(kind: str | None, text: str | None) -> str | None:
    """Return the *text* of a cause, after the *kind* of failure if it is of one."""
    return text if text is None or kind is None else f"{kind}: {text}"
