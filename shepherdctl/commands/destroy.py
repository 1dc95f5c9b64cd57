"""The command that takes a deployment away: ``shepherdctl destroy``."""

from pathlib import Path

from shepherd_core.adapters import aws

from shepherdctl.commands.deploy import FileArgument, read_answers
from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.deployment import account, stack
from shepherdctl.options import DryRun
from shepherdctl.output.printing import counted, note


def destroy(file: FileArgument = Path("shepherd.toml"), *, dry_run: DryRun = False, yes: Yes = False) -> None:
    """
    Delete the stack of a deployment: everything that costs money by itself.

    Shows what goes and what stays, and asks for the stack's name. The functions,
    their schedules, roles, logs and alarms go. What is yours stays: database,
    bucket, secrets and machines, whose agents go on running. May be repeated.

    Examples:
      shepherdctl destroy --dry-run
    """
    require_terminal(yes=yes or dry_run)
    answers = read_answers(file)
    aws.use_region(answers.region)
    found = account.look(answers)
    if found.stack is None:
        note(f"there is no stack {answers.stack} in {answers.region}")
    else:
        found.stack.require_ours(answers.stack)
        note(f"goes: the stack {answers.stack} ({found.stack.status}) with all resources:")
        for kind, names in stack.resources(answers.stack).items():
            note(f"- {len(names)} {kind}: {', '.join(names)}")
    note(f"stays: the database at {answers.parameters['BmdbHost']} with its users, and the machines with their agents")
    if found.bucket is not None:
        note(f"stays: the bucket {answers.bucket} with {counted(len(found.objects), 'object')}, and {file}")
    for name in sorted(found.parameters):
        note(f"stays: {name} in SSM")
    if dry_run:
        note("dry run: nothing was changed")
        return
    if found.stack is None:
        return
    if not yes:
        confirm(answers.stack)
    stack.delete(answers.stack)
    note(f"{answers.stack} is gone; what stays is deleted by hand, or used again by shepherdctl deploy")
