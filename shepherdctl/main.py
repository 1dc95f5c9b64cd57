"""
The operators' command line: ``shepherdctl``.

Commands are functions of the modules beside this one; here they get their
names. Exit status: 0 fine, 1 failed, 2 misused.
"""

from typing import Annotated, Any

import typer
from shepherd_core.errors import ShepherdError
from typer.core import TyperGroup

from shepherdctl import (
    database,
    installing,
    inventory,
    loops,
    machines,
    pausing,
    reconciling,
    recovering,
    resolving,
    status,
    worlds,
)
from shepherdctl.output import complain


class _Commands(TyperGroup):
    """Commands whose failures are told in words."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it raises on purpose becomes a message on standard error and exit status 1."""
        try:
            return super().invoke(ctx)
        except ShepherdError as error:
            if ctx.params["debug"]:
                raise
            complain(f"{error}\nThis may pass: try again." if error.retryable else str(error))
            raise typer.Exit(1) from error


def _group(text: str) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it prints values of variables
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _everywhere(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """
    Operate a fleet of bare-metal machines.

    The settings are those of the functions, SHEPHERD_BMDB_HOST and so on; see
    docs/operations.md. Data goes to standard output, as tables or (-o json)
    for programs, everything else to standard error. Exit status: 0 fine, 1
    failed, 2 misused.

    Examples:
      shepherdctl db migrate
      shepherdctl status
      shepherdctl machine list
      shepherdctl pause --all --reason "network maintenance" --for 2h
    """


db = _group("The schema of the BMDB.")
db.command("migrate")(database.migrate)
db.command("status")(database.status)
app.add_typer(db, name="db")

machine = _group("Look at machines, take them in and let them go, and tell the loops what to do with them.")
machine.command("list")(machines.list_machines)
machine.command("show")(machines.show)
machine.command("why")(recovering.why)
machine.command("retry")(recovering.retry)
machine.command("unquarantine")(recovering.unquarantine)
machine.command("install")(installing.install)
machine.command("forget-host-key")(machines.forget_host_key)
machine.command("adopt")(resolving.adopt)
machine.command("forget")(resolving.forget)
machine.command("release")(resolving.release)
app.add_typer(machine, name="machine")

app.command("status")(status.status)
app.command("reconcile")(reconciling.reconcile)
app.command("inventory")(inventory.inventory)
app.command("history")(machines.history)
app.command("pause")(pausing.pause)
app.command("pauses")(pausing.pauses)
app.command("resume")(pausing.resume)
app.command("run")(loops.run)
app.command("demo")(worlds.demo)
app.command("simulate")(worlds.simulate)


def main() -> None:
    """Run the command line that this process was given."""
    app()
