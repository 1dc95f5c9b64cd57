"""The commands on the schema: ``shepherdctl db``."""

from typing import Annotated

import typer
from shepherd_core.bmdb.schema import migrate as migrations

from shepherdctl.database import bmdb
from shepherdctl.output import Column, Form, Output, document, facts, note, table


def migrate(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be applied.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Bring the BMDB's schema up to date with this code.

    Applies the migrations that are missing, each in one transaction. May be
    run at any time, by several at once, and again after it was interrupted.
    An edited migration, or a BMDB newer than this code, is refused.

    Examples:
      shepherdctl db migrate --dry-run
      shepherdctl db migrate
    """
    with bmdb() as connection:
        applied = migrations.migrate(connection, dry_run=dry_run)
        version = migrations.schema_version(connection)
    if output is Form.JSON:
        listed = [{"version": migration.version, "name": migration.name} for migration in applied]
        document({"dry_run": dry_run, "migrations": listed, "bmdb_version": version})
        return
    outcome = "would be applied" if dry_run else "applied"
    table(
        [Column("VERSION"), Column("MIGRATION"), Column("OUTCOME")],
        [(migration.version, migration.name, outcome) for migration in applied],
    )
    if not applied:
        note(f"nothing to apply: the BMDB has version {version}")


def status(output: Output = Form.TABLE) -> None:
    """
    Tell the version of the BMDB's schema, and the one that this code needs.

    Fails if an applied migration was edited since.

    Examples:
      shepherdctl db status
      shepherdctl db status -o json | jq '.bmdb_version == .code_version'
    """
    with bmdb() as connection:
        version = migrations.schema_version(connection)
        pending = migrations.migrate(connection, dry_run=True) if version <= _wanted() else []
    if output is Form.JSON:
        listed = [{"version": migration.version, "name": migration.name} for migration in pending]
        document({"bmdb_version": version, "code_version": _wanted(), "pending": listed})
        return
    if version > _wanted():
        verdict = "the BMDB is newer than this code: deploy the code that belongs to it"
    elif pending:
        names = ", ".join(migration.name for migration in pending)
        verdict = f"to apply: {names} (run shepherdctl db migrate)"
    else:
        verdict = "up to date"
    facts([("BMDB", f"version {version}"), ("this code", f"version {_wanted()}"), ("migrations", verdict)])


def _wanted() -> int:
    return migrations.migrations()[-1].version
