"""The command that gives machines labels."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from shepherd_core.bmdb.machines.labels import set_labels
from shepherd_core.domain import labels
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.functions.bmdb import OPERATOR

from shepherdctl.confirm import Yes
from shepherdctl.database import bmdb
from shepherdctl.options import DryRun, OwnerOption, current_user
from shepherdctl.output.formats import in_full
from shepherdctl.output.printing import Column, Form, Output, document, ids, note, table
from shepherdctl.selection import Selection, selecting


@selecting
def label(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[ID] LABEL...",
            help="The machine, unless filters are given; KEY=VALUE to set a label, KEY- to remove it.",
        ),
    ],
    *,
    selection: Selection,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Give machines labels, or remove them: free names with values, to select by.

    KEY=VALUE sets a label in place of one with the same key, KEY= one without a
    value; KEY- removes it. Labels that the provider or the machine list names
    come and go there: they cannot be removed here, but a label of the same key
    wins. If one machine cannot have them, none gets them. Who did it is stored
    in the history of each machine. Asks for confirmation unless one machine is
    named.

    Examples:
      shepherdctl machine label 3f2a role=db rack=r12
      shepherdctl machine label 3f2a role-
      shepherdctl machine label --location rack7 moves=2027-01
    """
    if not selection:
        selection, words = selection.to_confirm(words[:1], yes=True), words[1:]
    added, removed = _parsed(words)
    selection = selection.to_confirm(yes=yes or dry_run)
    reason = " ".join((f"{owner or current_user()}:", *labels.written(added), *(f"{key}-" for key in removed)))
    with bmdb(role=OPERATOR) as connection:
        machines = selection.to_change(connection)
        if not (yes or dry_run):
            selection.confirm(connection, machines)

        def unit() -> list[dict[str, Any]]:
            changed = []
            for machine in machines:
                name = in_full(machine.provider_id, machine.machine_id)
                found = set_labels(connection, machine.machine_id, added, removed, reason=reason)
                if found is None:
                    message = f"machine {name} is not provided (being created, or gone): nothing was changed"
                    raise ShepherdError(message)
                if len(found) > labels.MOST:
                    message = f"machine {name} would have {len(found)} labels, but at most {labels.MOST} are possible"
                    raise ShepherdError(f"{message}: nothing was changed")
                changed.append({"machine_id": machine.machine_id, "provider_id": machine.provider_id, "labels": found})
            return changed

        changed = connection.dry_run(unit) if dry_run else connection.transact(unit)
    if output is Form.JSON:
        document({"dry_run": dry_run, "machines": changed})
        return
    rows = zip(ids(one["machine_id"] for one in changed), changed, strict=True)
    table(
        [Column("PROVIDER ID"), Column("MACHINE"), Column("LABELS", prose=True)],
        [(one["provider_id"], name, ", ".join(labels.written(one["labels"])) or "none") for name, one in rows],
    )
    if left := [key for key in removed if any(key in one["labels"] for one in changed)]:
        note(f"{', '.join(left)} stays: the provider or the machine list names it, and it can be removed there")
    if dry_run:
        note("dry run: nothing was changed")


def _parsed(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """
    Return the labels to set, and the keys to remove.

    Raises:
        BadParameter: there is none, one is wrong, or two have the same key.
    """
    try:
        removed = [labels.read(word[:-1])[0] for word in words if "=" not in word and word.endswith("-")]
        added = [labels.read(word) for word in words if "=" in word]
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    if not words or len({*removed, *dict(added)}) < len(words):
        message = "give each label once, as KEY=VALUE, or as KEY- to remove it."
        raise typer.BadParameter(message)
    return dict(added), removed
