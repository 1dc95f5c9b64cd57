"""The command that deploys Shepherd: ``shepherdctl deploy``."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer
from shepherd_core.adapters import aws, documents
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.domain.errors import ShepherdError, SourceError
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.deployment import DeploymentSettings, OperatorSettings
from shepherd_core.settings.document import LIMIT_BYTES

from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.deployment import account, first_ticks, stack, template
from shepherdctl.deployment.answers import Answers, read
from shepherdctl.deployment.plan import (
    Change,
    CloseBucket,
    DeleteCode,
    DeleteFailedStack,
    DeployStack,
    Found,
    KeepVersions,
    MakeBucket,
    MakeSshKey,
    PutObject,
    StoreSecret,
    plan,
    told,
)
from shepherdctl.deployment.questions import Place, ask
from shepherdctl.descriptions.condition import EXIT_STATUS
from shepherdctl.options import DryRun
from shepherdctl.output.printing import counted, note

FileArgument = Annotated[
    Path, typer.Argument(metavar="[FILE]", help="The settings document with the answers.", show_default=True)
]


def deploy(
    file: FileArgument = Path("shepherd.toml"),
    *,
    build: Annotated[
        Path | None,
        typer.Option("--build", metavar="FOLDER", help="What `sam build` made, instead of building it now."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """
    Deploy Shepherd into your AWS account, or bring the deployment up to date.

    FILE is the settings document; its table "deployment" has the answers. If it
    does not exist, the command asks, and writes it. It holds no secret, and
    belongs in version control. The command makes what is
    missing (bucket, secrets, SSH key, documents), builds and uploads the code,
    creates or updates the stack, and waits until the loops have run. Lists all
    changes and asks first. May be repeated at any time, also after an
    interruption. Uses your AWS credentials, in the region that FILE names. With
    --yes it stops at a stack that must be deleted first.

    Examples:
      shepherdctl deploy --dry-run
      shepherdctl deploy examples/hetzner/shepherd.toml
    """
    require_terminal(yes=yes or dry_run)
    asks = sys.stdin.isatty() and not (yes or file.exists())
    answers = _ask(file, dry_run=dry_run) if asks else read_answers(file)
    aws.use_region(answers.region)
    found = _at_rest(answers)
    made = template.Build(build) if build else _built(answers)
    named = {name: _document(source, file.parent) for name, source in answers.documents.items()}
    packed = template.package(made, answers.bucket, f"{_s3_url()}/{answers.bucket}", answers.parameters["Architecture"])
    given = dict(_given(answers, found, file.parent))
    found = replace(found, secrets=account.secrets(given.keys() & found.parameters))
    changes = plan(answers, found, named, given, packed)
    for text in (*answers.notes, *_listed(changes)):
        note(text)
    if dry_run:
        note("dry run: nothing was changed")
        return
    if changes and not yes:
        confirm(answers.stack)
    elif deletion := next((each for each in changes if isinstance(each, DeleteFailedStack)), None):
        message = (
            f"the stack {deletion.stack} is {deletion.status} and must be deleted first, which --yes does not confirm: "
            "run this without --yes, or first shepherdctl destroy"
        )
        raise ShepherdError(message)
    for change in changes:
        _carry_out(change, answers, found)
    ran = _ran(answers, changed=bool(changes))
    _print_exports(answers)
    if not ran:
        raise typer.Exit(EXIT_STATUS)


def _ask(file: Path, *, dry_run: bool) -> Answers:
    """Ask what cannot be known, write the answers into *file*, or only show them, and return them."""
    note(f"{file} does not exist: a few questions make it. Enter takes what is in brackets; Ctrl-C writes nothing.")
    place = Place(account.caller(), str(aws.client("sts").meta.region_name), file.parent)
    note(f"account {place.account}, region {place.region}")
    text = ask(_typed, note, template.parameters(), place)
    if dry_run:
        note(f"without --dry-run, {file} gets the answers:\n\n{text}")
    else:
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            message = f"{file} cannot be written: {error.strerror}"
            raise SourceError(message) from error
        note(f"{file} has the answers, and no secret: keep it in version control")
    return read(text.encode(), template.parameters())


def _typed(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        message = "the input ended before the last question; nothing was written"
        raise ShepherdError(message)
    return line


def read_answers(file: Path) -> Answers:
    """
    Return the answers in *file*.

    Raises:
        SourceError: there is no such file.
        ConfigError: it is wrong; lists every fault.
    """
    if not file.exists():
        message = (
            f"{file} does not exist: shepherdctl deploy asks for the answers on a terminal, without --yes; "
            "shepherdctl settings init prints a document to fill in"
        )
        raise SourceError(message)
    return read(documents.read(str(file), LIMIT_BYTES), template.parameters())


def _document(source: str, folder: Path) -> bytes:
    """Return what is at *source*; a path is relative to the *folder* of the answers."""
    return documents.read(source if ":" in source else str(folder / source))


def _s3_url() -> str:
    return str(aws.client("s3").meta.endpoint_url)


def _at_rest(answers: Answers) -> Found:
    """Return what is there, after CloudFormation has ended what it is at."""
    found = account.look(answers)
    while found.stack is not None and found.stack.moves:
        note(f"the stack {answers.stack} is {found.stack.status}: waiting for the end of that")
        stack.follow(found.stack.id)
        found = account.look(answers)
    return found


def _built(answers: Answers) -> template.Build:
    """Return what is deployed, after building it, if this is a copy of the repository."""
    if template.is_checkout():
        command = ["make", "--silent", "-C", str(template.SOURCE), "build"]
        note("building the code")
        made = subprocess.run(  # noqa: S603 - no part of it is from outside
            [*command, f"ARCHITECTURE={answers.parameters['Architecture']}"],
            check=False,
            capture_output=True,
            text=True,
        )
        if made.returncode:
            message = f"the build failed:\n{made.stdout}{made.stderr}".strip()
            raise ShepherdError(message)
        if "WARNING" in made.stderr:
            note(made.stderr.strip())
    return template.built()


def _listed(changes: list[Change]) -> Iterator[str]:
    """Yield a line for each change; the code is one."""
    code = [each for each in changes if isinstance(each, PutObject) and each.is_code]
    for change in changes:
        if change not in code:
            yield f"- {told(change)}"
        elif change is code[0]:
            size = sum(len(each.content) for each in code) / 1e6
            yield f"- upload the code: {counted(len(code), 'object')}, {size:.1f} MB"
    if not changes:
        yield "nothing to change: the deployment is as the answers say"


def _given(answers: Answers, found: Found, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the secrets that have a source, by parameter. A wrong source may be the secret itself, and is not shown."""
    for key, source in answers.secrets.items():
        name = answers.parameter(key)
        try:
            content = _document(source, folder)
        except ShepherdError:
            told = f"the secret {name} cannot be read from where [deployment.secrets] says"
            if name not in found.parameters:
                message = f"{told}: name a path, https://…, s3://BUCKET/KEY or ssm:NAME"
                raise SourceError(message) from None
            note(f"{told}, and stays as it is in SSM")
            continue
        value = content.decode(errors="surrogateescape").rstrip("\r\n")  # what is no UTF-8 is not printable
        if wrong := _unfit(value):
            message = f"the secret {name}: {wrong}"
            raise ShepherdError(message)
        yield name, value


def _unfit(secret: str) -> str | None:
    return None if secret.isprintable() and secret else "it must be printable text on one line"


def _carry_out(change: Change, answers: Answers, found: Found) -> None:
    kms_key = answers.parameters["KmsKeyArn"]
    match change:
        case MakeBucket() | CloseBucket() | KeepVersions() | PutObject() | DeleteCode():
            account.change_bucket(change, found.account, kms_key)
        case StoreSecret(name, replaces=replaces):
            SsmSecretStore().put(name, _secret(change, answers), replace=replaces, kms_key=kms_key)
        case MakeSshKey(name):
            account.make_ssh_key(name, kms_key)
        case DeleteFailedStack(name):
            stack.delete(name)
        case DeployStack():
            if not stack.deploy(change, f"{_s3_url()}/{answers.bucket}/{change.template}"):
                note("CloudFormation finds nothing to change")


def _secret(change: StoreSecret, answers: Answers) -> str:
    """Return a secret as its source has it or, else, as it is typed; of the database, one that it does not refuse."""
    name = change.name
    while True:
        value = change.value
        if value is None and not sys.stdin.isatty():
            message = f"the secret {name} is not in SSM: store it there, or name its source in [deployment.secrets]"
            raise ShepherdError(message)
        if value is None:
            value = getpass(f"{name} (not shown): ")
        wrong = _unfit(value)
        if wrong is None and name == answers.parameter("bmdb-password"):
            wrong = first_ticks.refusal(answers, value)
        if wrong is None:
            return value
        if change.value is not None:
            message = f"the secret {name}: {wrong}"
            raise ShepherdError(message)
        note(wrong)


def _ran(answers: Answers, *, changed: bool) -> bool:
    """Wait for the ticks after what *changed*, and return whether all of them succeeded."""
    loops = first_ticks.awaited(answers)
    if not loops:
        return True
    note(f"waiting until the loops have run: {', '.join(loops)}")
    try:
        ticks = first_ticks.wait(answers, changed=changed)
    except ShepherdError as error:  # in a VPC, there may be no way to it
        note(f"the BMDB cannot be read from here, so that nothing is known of the loops: {error}")
        return False
    for loop, tick in ticks.items():
        if tick is None:
            note(f"no tick of {loop} was seen: its log group, /aws/lambda/{answers.stack}-{loop}, says why")
    return all(tick is not None and tick.outcome == "Succeeded" for tick in ticks.values())


def _print_exports(answers: Answers) -> None:
    """Print what a shell needs for the other commands, and what to do next."""
    given = first_ticks.login(answers)
    told = {f"{PREFIX}{name.upper()}": value for name, value in given.items()}
    told[f"{PREFIX}SSH_KEY_PARAMETER"] = answers.parameter("ssh-key")
    credential = answers.parameter(f"{answers.provider}-credential")
    if credential.rpartition("/")[2] in answers.needed_secrets:
        told[f"{PREFIX}PROVIDER_CREDENTIAL_PARAMETER"] = credential
    if answers.provider == "ec2":
        told[f"{PREFIX}PROVIDER_FLEET"] = answers.stack
    if answers.parameters["LoopMinutes"] != DeploymentSettings.model_fields["loop_minutes"].default:
        told[f"{PREFIX}LOOP_MINUTES"] = answers.parameters["LoopMinutes"]
    if answers.stack != OperatorSettings.model_fields["logs"].default:
        told[f"{PREFIX}LOGS"] = answers.stack
        told[f"{PREFIX}INSTALLATION_KEY_SOURCE"] = f"ssm:{answers.parameter('installation-key')}"
    for name, value in {"AWS_DEFAULT_REGION": answers.region, f"{PREFIX}SETTINGS": answers.settings, **told}.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    if url := stack.outputs(answers.stack).get("AgentApiUrl"):
        note(f"agents report to {url}")
    note("with these exports, shepherdctl status shows the fleet, and shepherdctl ssh-key show the key for machines")
