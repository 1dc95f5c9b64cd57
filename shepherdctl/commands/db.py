"""The commands on the schema: ``shepherdctl db``."""

from shepherd_core.bmdb.schema import migrate as migrations
from shepherd_core.settings.functions.services import MigratorSettings
from shepherd_core.wiring import adapters
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.options import DryRun
from shepherdctl.output.printing import Column, Form, Output, document, facts, note, table


def migrate(
    *,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Bring the BMDB's schema up to date with this code.

    Applies the missing migrations, each in one transaction, and then creates the
    roles of the functions, if SHEPHERD_BMDB_ROLES is set. Logs in as the user
    that owns the schema. Safe to run at any time, concurrently, and again after
    an interruption. Refuses if an applied migration was edited, or if the BMDB
    is newer than this code.

    Examples:
      shepherdctl db migrate --dry-run
      shepherdctl db migrate
    """
    with bmdb(*load(MigratorSettings)) as connection:
        applied = migrations.migrate(connection, dry_run=dry_run)
        version = migrations.schema_version(connection)
        roles = [] if dry_run else adapters.make_roles(connection)
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
    if roles:
        note(f"roles with their grants: {', '.join(roles)}")


def status(output: Output = Form.TABLE) -> None:
    """
    Show the version of the BMDB's schema, and the one that this code needs.

    Fails if an applied migration was edited.

    Examples:
      shepherdctl db status
      shepherdctl db status -o json | jq '.schema_version == .needed_version'
    """
    code_version = migrations.migrations()[-1].version
    with bmdb(*load(MigratorSettings)) as connection:
        version = migrations.schema_version(connection)
        pending = migrations.migrate(connection, dry_run=True) if version <= code_version else []
    if output is Form.JSON:
        listed = [{"number": migration.version, "name": migration.name} for migration in pending]
        document({"schema_version": version, "needed_version": code_version, "migrations": listed})
        return
    if version > code_version:
        result = "the BMDB is newer than this code: deploy the code that matches it"
    elif pending:
        names = ", ".join(migration.name for migration in pending)
        result = f"to apply: {names} (run shepherdctl db migrate)"
    else:
        result = "up to date"
    facts([("BMDB", f"version {version}"), ("this code", f"version {code_version}"), ("migrations", result)])
