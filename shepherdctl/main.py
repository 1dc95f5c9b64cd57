"""
The operators' command line: ``shepherdctl``.

Commands are functions of the modules beside this one; here they get their
names. Exit status: 0 fine, 1 failed, 2 misused.
"""

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import typer
from shepherd_core.domain.errors import ShepherdError
from typer.core import TyperCommand, TyperGroup, TyperOption

from shepherdctl.commands import db, demo, history, inventory, pause, reconcile, recovery, run, status
from shepherdctl.commands.machine import forget_host_key, install, repair, retry, show, unquarantine, why
from shepherdctl.commands.machine import list as listing
from shepherdctl.interrupts import ended_in_order
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


class _Command(TyperCommand):
    """A command in which an option that takes one value may be given once: of two, the first would be dropped."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args*, and refuse those that name an option twice."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for option, times in Counter(given).items():
            if times > 1 and isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                message = f"{option.opts[0]} was given twice: it takes one value."
                raise typer.BadParameter(message)
        return super().parse_args(ctx, args)


def _add(group: typer.Typer, name: str, command: Callable[..., None]) -> None:
    group.command(name, cls=_Command)(command)


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


db_group = _group("The schema of the BMDB.")
_add(db_group, "migrate", db.migrate)
_add(db_group, "status", db.status)
app.add_typer(db_group, name="db")

machine_group = _group("Look at machines, take them in and let them go, and tell the loops what to do with them.")
_add(machine_group, "list", listing.list_machines)
_add(machine_group, "show", show.show)
_add(machine_group, "why", why.why)
_add(machine_group, "retry", retry.retry)
_add(machine_group, "unquarantine", unquarantine.unquarantine)
_add(machine_group, "install", install.install)
_add(machine_group, "forget-host-key", forget_host_key.forget_host_key)
_add(machine_group, "adopt", repair.adopt)
_add(machine_group, "forget", repair.forget)
_add(machine_group, "release", repair.release)
app.add_typer(machine_group, name="machine")

recovery_group = _group("Let the Recoverer go on where it suspends recovery.")
_add(recovery_group, "override", recovery.override)
_add(recovery_group, "withdraw", recovery.withdraw)
app.add_typer(recovery_group, name="recovery")

_add(app, "status", status.status)
_add(app, "reconcile", reconcile.reconcile)
_add(app, "inventory", inventory.inventory)
_add(app, "history", history.history)
_add(app, "pause", pause.pause)
_add(app, "pauses", pause.pauses)
_add(app, "resume", pause.resume)
_add(app, "run", run.run)
_add(app, "demo", demo.demo)
_add(app, "simulate", demo.simulate)


def main() -> None:
    """Run the command line that this process was given."""
    with ended_in_order():
        app()
