"""The commands on the schema: ``shepherdctl db``."""

import math
from typing import Annotated

import typer
from shepherd_core.bmdb.schema import migrate as migrations
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.clock import Deadline
from shepherd_core.settings.functions.services import MigratorSettings
from shepherd_core.wiring import adapters
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.options import DryRun
from shepherdctl.output.printing import Column, Form, Output, document, facts, note, table


def migrate(
    *,
    late: Annotated[
        bool, typer.Option("--late", help="Also those that only this code can use: all functions have it.")
    ] = False,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Bring the BMDB's schema up to date with this code.

    Applies the missing migrations that the code of the present schema can use,
    each in one transaction, and then creates the roles of the functions, if
    SHEPHERD_BMDB_ROLES is set. Logs in as the user that owns the schema. Safe to
    run at any time, concurrently, and again after an interruption. Refuses if an
    applied migration was edited, or if the BMDB is newer than this code and does
    not allow it.

    Examples:
      shepherdctl db migrate --dry-run
      shepherdctl db migrate
    """
    with bmdb(*load(MigratorSettings), limits=TimeLimits(statement=0, lock=migrations.LOCK_SECONDS)) as connection:
        running = None if late else migrations.schema_version(connection)
        deadline = Deadline(adapters.CLOCK, math.inf)
        applied = migrations.migrate(connection, running=running, dry_run=dry_run, deadline=deadline)
        version = migrations.schema_version(connection)
        roles = [] if dry_run else adapters.make_roles(connection, deadline)
        waiting = [each for each in migrations.migrate(connection, dry_run=True) if each not in applied]
    if output is Form.JSON:
        listed = [{"number": migration.version, "name": migration.name} for migration in applied]
        document({"dry_run": dry_run, "migrations": listed, "schema_version": version, "roles": roles})
        return
    outcome = "would be applied" if dry_run else "applied"
    table(
        [Column("VERSION"), Column("MIGRATION"), Column("OUTCOME")],
        [(migration.version, migration.name, outcome) for migration in applied],
    )
    if not applied:
        note(f"nothing to apply: the BMDB has version {version}")
    if waiting:
        names = ", ".join(each.name for each in waiting)
        note(f"waits until all functions have this code, then for the next deployment or --late: {names}")
    if roles:
        note(f"roles with their grants: {', '.join(roles)}")


def status(output: Output = Form.TABLE) -> None:
    """
    Show the version of the BMDB's schema, and the one that this code needs.

    Fails if an applied migration was edited.

    Examples:
      shepherdctl db status
      shepherdctl db status -o json | jq .usable
    """
    code = migrations.this_code()
    with bmdb(*load(MigratorSettings)) as connection:
        version, usable = migrations.schema_version(connection), migrations.is_usable(connection)
        newer = version > code.known_schema
        pending = [] if newer and not usable else migrations.migrate(connection, dry_run=True)
    if output is Form.JSON:
        listed = [{"number": migration.version, "name": migration.name} for migration in pending]
        versions = {"schema_version": version, "needed_version": code.needed_schema, "usable": usable}
        document({**versions, "migrations": listed})
        return
    if newer:
        allowed = ", and allows it" if usable else ": deploy the code that matches it"
        result = f"the BMDB is newer than this code{allowed}"
    elif pending:
        names = ", ".join(migration.name for migration in pending)
        result = f"to apply: {names} (run shepherdctl db migrate)"
    else:
        result = "up to date"
    facts([("BMDB", f"version {version}"), ("this code", f"version {code.known_schema}"), ("migrations", result)])
