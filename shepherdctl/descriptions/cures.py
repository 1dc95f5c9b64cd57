"""The cure of each known failure. A test compares them with the table of docs/operations.md, Failures."""

import re
from collections.abc import Iterable

CURES = {
    "ConfigError": "The text lists every fault; correct the document or the deployment, see docs/settings.md.",
    "EventInvalid": "Compare the event with the samples in `events/`.",
    "TimeLimitExceeded": "Once: nothing. Often: look at the provider and at the way to the machine.",
    "AnswerUndelivered": (
        "Check that the function can reach S3. Invoke it again with the same event, or wait until "
        "CloudFormation gives up."
    ),
    "BmdbUnavailable": "Look at the database. The loops resume by themselves.",
    "BmdbUntrusted": "Correct `SHEPHERD_BMDB_HOST`, or name the CAs in `SHEPHERD_BMDB_CA_SOURCE`.",
    "SerializationConflict": "Look for long transactions of other clients.",
    "CommitUnknown": (
        "Once: nothing, the next invocation reads the outcome. Often: find out why commits take so long, at "
        "the database's disk or its synchronous standby."
    ),
    "StatementFailed": "Check the permissions of the user; otherwise report it as a defect of Shepherd.",
    "SchemaMismatch": "Run `shepherdctl db migrate`, or deploy the code that belongs to the database.",
    "MigrationRefused": "Restore the migration file; put the change into a new migration.",
    "RolesRefused": "Give the owner these rights, or create the users yourself: docs/deployment.md#2-the-database.",
    "SessionExpired": "Once: nothing. Often: look at the database, which was slow or not reached for a minute.",
    "NoLongerDue": "Nothing.",
    "MachineUnknown": "Give more of the id.",
    "WorkConflict": "Wait; `shepherdctl machine show ID` says until when.",
    "ProviderUnavailable": "Nothing, unless it lasts.",
    "ProviderRefused": "The provider's answer is in the text.",
    "ProviderUnusable": "The provider's answer is in the text; correct the credential or the settings.",
    "MachineNotFound": "Look at the provider; the Provisioner sets the machine aside.",
    "CapacityTaken": "Once: nothing. Often: do not share a project without a prefix of your own.",
    "NotSupported": (
        "In recovery: nothing, the next step of the policy is taken. The text says what the provider can do; "
        "docs/providers/README.md compares the providers."
    ),
    "ListingInvalid": "Nothing, unless it lasts; for `static`: correct the list, the text names the entries.",
    "DriftLimitExceeded": (
        "Check the configured project, prefix and database: see docs/operations.md#when-provider-and-bmdb-disagree."
    ),
    "NoAddress": (
        "Nothing while it is being provisioned. Later: have the provider report one, then `shepherdctl "
        "machine retry ID`."
    ),
    "SshRefused": "Nothing while it boots; then look at the machine.",
    "SshTimedOut": "Look at the machine and the network between (security groups, routes).",
    "SshAuthenticationFailed": (
        "Check that it was created with the key in `SHEPHERD_SSH_KEY_PARAMETER`. `Please login as the user "
        "…`: set `SHEPHERD_SSH_USER`, or allow root to log in. Then `shepherdctl machine retry ID`."
    ),
    "HostKeyUnknown": (
        "Read the key over a path that nobody can tamper with (console, installer), and pin it: `shepherdctl "
        "machine pin-host-key ID KEY`, or `HostKey` in the list of machines."
    ),
    "SshHostKeyChanged": (
        "Find out why. If it was reinstalled: `shepherdctl machine pin-host-key ID KEY --replace` with its "
        "new key, or `shepherdctl machine forget-host-key ID` to trust the host that answers next; with "
        "`ec2`, where the provider knows the key, correct it there (tag `shepherd-host-key`)."
    ),
    "SshConnectionLost": (
        "Nothing, unless it repeats, or the text says `no acceptable`: see docs/operations.md#ssh-algorithms."
    ),
    "SshMisbehaved": (
        "Find out what runs there; do not trust the machine. It cannot harm others "
        "(docs/decisions/0025-process-for-each-machine.md)."
    ),
    "SshOutOfResources": (
        "Nothing, unless it repeats: then lower the loop's concurrency, or give the function more memory."
    ),
    "SshForkServerLost": "Nothing, unless it repeats: then the function has too little memory.",
    "SshUploadFailed": "Look at the machine's disk, and at `SHEPHERD_AGENT_PATH`.",
    "AgentExited": "The end of its output is in the text, all of it in the log.",
    "MalformedAnswer": "Check that it is the right executable for the machine.",
    "WrongKeyLength": "Check that the agent speaks this protocol.",
    "WrongInitMessage": "Check that the agent speaks this protocol.",
    "AgentRefused": "The error is in the text.",
    "SecretMissing": (
        "Create it (the SSH key: `shepherdctl ssh-key create`), or correct the policy; the text says which."
    ),
    "SecretUnavailable": "Nothing, unless it lasts.",
    "AgentMismatch": "If you uploaded a new agent, set what `agent/build.py` printed. If not, find out who did.",
    "SourceMissing": "Correct the setting, or create the file or object.",
    "SourceUnavailable": "Nothing, unless it lasts.",
    "FunctionDied": (
        "Once: nothing. In quarantine: find out what the machine does to the function, then `shepherdctl "
        "machine unquarantine`; see docs/operations.md#when-recovery-stops."
    ),
}
"""By the name with which a cause begins."""


def cures(causes: Iterable[str | None]) -> list[str]:
    """Return the cures, a line for each known failure that is named in one of *causes*."""
    named = (name for cause in causes for name in re.findall(r"[A-Z][A-Za-z]+", cause or ""))
    return [f"{name}: {CURES[name]}" for name in dict.fromkeys(named) if name in CURES]
