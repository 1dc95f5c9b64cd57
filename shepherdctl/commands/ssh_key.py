"""The commands on Shepherd's SSH key: ``shepherdctl ssh-key``."""

from typing import Annotated

import typer
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.functions.shared import SshKeySettings
from shepherd_core.wiring.settings import load

from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.deployment.account import make_ssh_key, publish, publish_both
from shepherdctl.options import DryRun
from shepherdctl.output.printing import Form, Output, document, facts, note

_KmsKey = Annotated[
    str, typer.Option("--kms-key", metavar="ARN", help="KMS key that encrypts it.", show_default="AWS's own")
]


def create(kms_key: _KmsKey = "", output: Output = Form.TABLE) -> None:
    """
    Create Shepherd's SSH key, and print its public half.

    The key goes to the SSM parameter that the setting ssh_key_parameter names,
    its public half to the same name with .pub at the end. If there is a key
    already, it stays, and only the public half is written, if it is missing or
    belongs to another key. To use a key of your own, store it there first. After
    an interruption, run this again.

    Examples:
      shepherdctl ssh-key create
      SHEPHERD_SSH_KEY_PARAMETER=/STACK/ssh-key shepherdctl ssh-key create
    """
    _, name = _store()
    created, line = make_ssh_key(name, kms_key)
    _print({"parameter": name, "created": created, "public_key": line, "previous": None}, output)


def show(output: Output = Form.TABLE) -> None:
    """
    Show the public half of Shepherd's SSH key.

    During a rotation, the public half of the previous key is shown, too. Reads no
    private key. Fails if no public half is stored, or if a rotation was
    interrupted, and names the command that helps.

    Examples:
      shepherdctl ssh-key show
      shepherdctl ssh-key show -o json | jq -r .public_key
    """
    store, name = _store()
    public = ssh_keys.public_parameter(name)
    line, previous = store.find(public), store.find(ssh_keys.public_parameter(ssh_keys.previous_parameter(name)))
    if line is None or line == previous:
        reason = (
            "does not exist" if line is None else f"may not be the public half of {name}: its rotation was interrupted"
        )
        message = f"{public} {reason}; run ssh-key create, which writes it"
        raise ShepherdError(message)
    _print({"parameter": name, "public_key": line, "previous": previous}, output)


def rotate(
    kms_key: Annotated[
        str, typer.Option("--kms-key", metavar="ARN", help="KMS key that encrypts it.", show_default="as now")
    ] = "",
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Replace Shepherd's SSH key with a new one.

    Without --kms-key, the new key is encrypted with the same KMS key as the
    present one. Functions use the new key within five minutes. Machines may have
    either until "ssh-key retire": the Initializer tries the old key where a
    machine refuses the new one, and logs the machine's address. Asks for
    confirmation. If this is
    interrupted, run "ssh-key create": it completes what was begun.

    Examples:
      shepherdctl ssh-key rotate
    """
    require_terminal(yes=yes or dry_run)
    store, name = _store()
    current = store.get(name)
    before = ssh_keys.previous_parameter(name)
    if store.find(before) not in {None, current}:
        _published(store, name)
        message = f"{before} exists: a rotation is under way; end it with ssh-key retire"
        raise ShepherdError(message)
    if dry_run:
        note(f"dry run: nothing was changed; {ssh_keys.public_line(current)} would be replaced")
        return
    if not yes:
        note(f"all functions use a new key instead of {ssh_keys.public_line(current)}")
        confirm(name)
    kms_key = kms_key or store.kms_key(name)
    store.put(before, current, replace=True, kms_key=kms_key)
    publish(store, before, current)
    store.put(name, ssh_keys.generate(), replace=True, kms_key=kms_key)
    line = publish_both(store, name)
    _print({"parameter": name, "public_key": line, "previous": ssh_keys.public_line(current)}, output)


def retire(*, dry_run: DryRun = False, yes: Yes = False, output: Output = Form.TABLE) -> None:
    """
    Delete the previous SSH key, which a rotation has replaced.

    Machines that accept no other key become unreachable for good: first try the
    new key on each, as docs/how-to/keys says. Asks for confirmation. For up to
    five more minutes, functions use the old key.

    Examples:
      shepherdctl ssh-key retire --dry-run
    """
    require_terminal(yes=yes or dry_run)
    store, name = _store()
    before = ssh_keys.previous_parameter(name)
    found = store.find(before)
    retired = None if found is None else ssh_keys.public_line(found)
    if found is not None:
        _published(store, name)
        if not (yes or dry_run):
            note(f"machines that accept no other key than {retired} become unreachable")
            confirm(before)
    for each in () if dry_run else (before, ssh_keys.public_parameter(before)):
        if store.find(each) is not None:
            store.delete(each)
    if output is Form.JSON:
        document({"parameter": before, "dry_run": dry_run, "retired": retired})
    elif retired is None:
        note(f"there is no {before}: no rotation is under way")
    else:
        facts([("retired", retired)])
    if dry_run:
        note("dry run: nothing was changed")


def _store() -> tuple[SsmSecretStore, str]:
    return SsmSecretStore(max_age_seconds=0), load(SshKeySettings)[0].ssh_key_parameter


def _published(store: SsmSecretStore, name: str) -> str:
    """Return the public half of the key *name*; fail if another one, or none, is stored for others to read."""
    public, line = ssh_keys.public_parameter(name), ssh_keys.public_line(store.get(name))
    if store.find(public) != line:
        message = f"{public} is not the public half of {name}: run ssh-key create, which writes it"
        raise ShepherdError(message)
    return line


def _print(found: dict[str, object], output: Form) -> None:
    if output is Form.JSON:
        document(found)
    else:
        facts([("public key", found["public_key"]), ("previous", found["previous"])])
