"""
The operators' command line: ``shepherdctl``.

The modules in ``commands`` hold the commands; this one names them. Exit
status: 0 success, 1 failure, 2 wrong usage, 3 something to look at.
"""

import errno
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from typing import Annotated, Any

import typer
from shepherd_core.bmdb.schema.migrate import migrations
from shepherd_core.domain.errors import ShepherdError
from typer.core import TyperCommand, TyperGroup, TyperOption

from shepherdctl import rights
from shepherdctl.commands import (
    causes,
    console,
    db,
    demo,
    deploy,
    destroy,
    history,
    inventory,
    logs,
    pause,
    provider,
    reconcile,
    run,
    simulate,
    ssh_key,
    status,
)
from shepherdctl.commands.machine import (
    adopt,
    forget,
    host_key,
    install,
    label,
    rebind,
    reboot,
    release,
    retire,
    retry,
    show,
    unquarantine,
    wait,
    why,
)
from shepherdctl.commands.machine import list as listing
from shepherdctl.commands.settings import check, import_machines, init
from shepherdctl.commands.settings import set as setting
from shepherdctl.commands.settings import show as settings
from shepherdctl.interrupts import graceful_exit
from shepherdctl.output.paging import paged
from shepherdctl.output.printing import OneOf, print_error
from shepherdctl.people import Person


class _Commands(TyperGroup):
    """Commands whose failures are printed as messages."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that *args* name; who types one of ``machine`` here is told where it is."""
        if args[0] not in self.commands and args[0] in getattr(self.commands["machine"], "commands", ()):
            message = f"there is no command {args[0]!r} here: did you mean 'machine {args[0]}'?"
            raise typer.BadParameter(message, ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a ShepherdError becomes a message on standard error and exit status 1."""
        try:
            return super().invoke(ctx)
        except ShepherdError as error:
            if ctx.params["debug"]:
                raise
            print_error(f"{error}\nThe failure may be temporary: try again." if error.retryable else str(error))
            raise typer.Exit(1) from error


class _MachineCommands(TyperGroup):
    """Commands on machines; what ends a machine has two meanings, so that neither is guessed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that *args* name."""
        if args[0] in ("delete", "destroy", "remove", "rm"):
            message = (
                f"there is no command {args[0]!r}: release gives a machine back to its provider, with all data on it; "
                "forget removes it from the BMDB alone."
            )
            raise typer.BadParameter(message, ctx)
        return super().resolve_command(ctx, args)


class _Command(TyperCommand):
    """
    A command of a kind of person, which refuses a second value for an option that takes one.

    The first would be dropped silently.
    """

    person: Person

    @property
    def pages(self) -> bool:
        """Return whether it prints what it has read, and ends."""
        return self.person is Person.READER and self.name not in ("wait", "console")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args*, and refuse those that name an option twice."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for option, times in Counter(given).items():
            if times > 1 and isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                message = f"{option.opts[0]} was given twice: it takes one value."
                raise typer.BadParameter(message)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; after a refusal, say all that the caller lacks, and not only the first."""
        try:
            with paged() if self.pages and not ctx.params.get("watch") else nullcontext():
                return super().invoke(ctx)
        except ShepherdError as error:
            if not rights.is_refusal(error):
                raise
            refusal = error
        lacking = "".join(
            f"\n  - {each}" for each in rights.missing(self.person)
        )  # whose errors have nothing to do with it
        message = f"{refusal}\nThis command is for {self.person}s; docs/how-to/people says how to become one."
        tried = " (rights to write are not tried)" if self.person is Person.ADMINISTRATOR else ""
        raise ShepherdError(f"{message} You lack{tried}:{lacking}" if lacking else message) from refusal


_COMMANDS = {person: type(f"_Command{person.name}", (_Command,), {"person": person}) for person in Person}


def _add(group: typer.Typer, person: Person, name: str, command: Callable[..., None], *, hidden: bool = False) -> None:
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        for info in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(parser := getattr(info, "parser", None), OneOf):
                info.autocompletion = _completion(parser.names)
    group.command(name, cls=_COMMANDS[person], hidden=hidden)(command)


def _completion(names: tuple[str, ...]) -> Callable[[], list[str]]:
    return lambda: list(names)


def _group(text: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True, cls=cls)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"shepherdctl {version('shepherd')}, BMDB schema version {migrations()[-1].version}")
        raise typer.Exit


ANYBODY, READER, OPERATOR, ADMINISTRATOR = Person

app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # it prints values of variables
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """
    Operate a fleet of bare-metal machines.

    The commands read the BMDB, the bare-metal database, in which Shepherd keeps
    everything that it knows. They use the settings of the functions: environment
    variables (SHEPHERD_BMDB_HOST and so on), and the settings document that
    SHEPHERD_SETTINGS names; see docs/settings. Data goes to standard output,
    as tables or (-o json) as JSON; messages go to standard error. Exit status: 0
    success, 1 failure, 2 wrong usage, 3 something is left to do or to look at
    (status, reconcile, machine retire, machine wait). After --install-completion,
    the shell completes commands, options and names with the Tab key.

    Examples:
      shepherdctl db migrate
      shepherdctl status
      shepherdctl machine list
      shepherdctl pause --all --reason "network maintenance" --for 2h
    """


db_group = _group("Migrate the schema of the BMDB, and show its version.")
_add(db_group, ADMINISTRATOR, "migrate", db.migrate)
_add(db_group, ADMINISTRATOR, "status", db.status)
app.add_typer(db_group, name="db")

settings_group = _group("Write, check, show and change the settings of the functions, and lists of machines.")
_add(settings_group, ANYBODY, "init", init.init)
_add(settings_group, ANYBODY, "check", check.check)
_add(settings_group, READER, "show", settings.show)
_add(settings_group, ADMINISTRATOR, "set", setting.set_value)
_add(settings_group, ANYBODY, "import-machines", import_machines.import_machines)
app.add_typer(settings_group, name="settings")

machine_group = _group("Show machines, and act on them.", _MachineCommands)
_add(machine_group, READER, "list", listing.list_machines)
_add(machine_group, READER, "show", show.show)
_add(machine_group, READER, "why", why.why)
_add(machine_group, READER, "wait", wait.wait)
_add(machine_group, OPERATOR, "retry", retry.retry)
_add(machine_group, OPERATOR, "reboot", reboot.reboot)
_add(machine_group, OPERATOR, "power-cycle", reboot.power_cycle)
_add(machine_group, OPERATOR, "unquarantine", unquarantine.unquarantine)
_add(machine_group, OPERATOR, "install", install.install)
_add(machine_group, OPERATOR, "label", label.label)
_add(machine_group, OPERATOR, "pin-host-key", host_key.pin_host_key)
_add(machine_group, OPERATOR, "forget-host-key", host_key.forget_host_key)
_add(machine_group, OPERATOR, "adopt", adopt.adopt)
_add(machine_group, OPERATOR, "rebind", rebind.rebind)
_add(machine_group, OPERATOR, "forget", forget.forget)
_add(machine_group, OPERATOR, "release", release.release)
_add(machine_group, OPERATOR, "retire", retire.retire)
# Where people look for them.
_add(machine_group, READER, "describe", show.show, hidden=True)
_add(machine_group, READER, "history", history.history, hidden=True)
_add(machine_group, READER, "logs", logs.logs, hidden=True)
_add(machine_group, OPERATOR, "pause", pause.pause, hidden=True)
app.add_typer(machine_group, name="machine")

ssh_key_group = _group("Create, show and replace Shepherd's SSH key.")
_add(ssh_key_group, ADMINISTRATOR, "create", ssh_key.create)
_add(ssh_key_group, READER, "show", ssh_key.show)
_add(ssh_key_group, ADMINISTRATOR, "rotate", ssh_key.rotate)
_add(ssh_key_group, ADMINISTRATOR, "retire", ssh_key.retire)
app.add_typer(ssh_key_group, name="ssh-key")

provider_group = _group("Write a provider of your own.")
_add(provider_group, ANYBODY, "new", provider.new)
app.add_typer(provider_group, name="provider")

_add(app, ADMINISTRATOR, "deploy", deploy.deploy)
_add(app, ADMINISTRATOR, "destroy", destroy.destroy)
_add(app, READER, "status", status.status)
_add(app, READER, "causes", causes.causes)
_add(app, OPERATOR, "reconcile", reconcile.reconcile)
_add(app, READER, "inventory", inventory.inventory)
_add(app, READER, "history", history.history)
_add(app, READER, "logs", logs.logs)
_add(app, OPERATOR, "pause", pause.pause)
_add(app, READER, "pauses", pause.pauses)
_add(app, OPERATOR, "resume", pause.resume)
_add(app, ADMINISTRATOR, "run", run.run)
_add(app, READER, "console", console.console)
_add(app, ANYBODY, "demo", demo.demo)
_add(app, ANYBODY, "simulate", simulate.simulate)


def main() -> None:
    """Run the command line of this process."""
    with graceful_exit():
        try:
            try:
                app()
            finally:
                sys.stdout.flush()
        except OSError as error:
            # A write has no name of a file. What a command opens itself is reported by the command.
            if error.filename is not None or error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more
            print_error(f"the output cannot be written: {error.strerror}")
            raise SystemExit(1) from error
