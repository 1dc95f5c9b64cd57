"""What all commands of the operators' command line share, and those about the schema."""

import shlex
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from uuid import UUID

import pytest
from shepherd_core.bmdb.schema.migrate import migrations
from shepherd_core.settings.functions.bmdb import BmdbSettings
from typer.core import TyperOption

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine, commands, without_styles

GLOSSARY = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text()
NEWEST = migrations()[-1].version
BY_WORDS = dict(commands())
COMMANDS = sorted(BY_WORDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_without_a_database(words: tuple[str, ...]) -> None:
    """As it was written, in a terminal of 80 columns: an example that is broken up cannot be copied."""
    command = BY_WORDS[words]
    _, *written = str(command.help).splitlines()
    shown = CommandLine(None).read(*words, "-h")
    printed = [line.rstrip() for line in without_styles(shown).splitlines()]
    assert f"Usage: root {' '.join(words)}" in "\n".join(printed)
    assert [line for line in written if line and f" {line}" not in printed] == []
    _, _, examples = "\n".join(printed).partition("Examples:")
    assert f"shepherdctl {' '.join(words)}" in examples or words[0] in ("demo", "simulate")
    assert CommandLine(None).read(*words, "--help") == shown


TWO_ENDS = "release gives a machine back to its provider, with all data on it; forget removes it from the BMDB"
REFUSED = {
    "nonsense": "No such command 'nonsense'",
    "whi": "No such command 'whi'",
    **{f"{name} rack1-3": f"did you mean 'machine {name}'?" for name in ("why", "list", "describe")},
    **{f"machine {word} x": TWO_ENDS for word in ("delete", "destroy", "remove", "rm")},
    "machine show": "Missing argument 'ID'",
    f"history {UUID(int=1)}": f"error: no machine matches '{UUID(int=1)}'",
    "history x --limit many": "'--limit': Input should be a valid integer",
    "run nonsense": "'nonsense' is not one of provisioner, ",
    "run provisioner --seconds 0": "'--seconds': Input should be greater than or equal to 1",
    "machine list --limit 0": "'--limit': Input should be greater than or equal to 1",
    "machine list --provider nobody": "'nobody' is not one of cherryservers, ",
    "machine list -o xml": "'xml' is not one of table, json",
    "machine list --state tired": "'tired' is not one of quarantined, ",
    "machine list --state released": "'released' is not one of quarantined, ",
    "machine list --cause": "requires an argument",
    "machine list --cause SshTimedOut": "'SshTimedOut' is not one of config-error, ",
    "machine list --heartbeat-older soon": "'soon' is not a duration",
    f"machine list --location {129 * 'x'}": "must have 1 to 128 characters",
    "machine list --location frra": "error: no machine is at 'frra': did you mean 'fra'?",
    "machine list --after 3f2a": "'3f2a' is not a whole machine id",
    f"machine list --sort heartbeat --after {UUID(int=1)}": "--after needs --sort id or created",
    "machine list --watch 2s": "--watch needs a terminal",
    "machine list --sort size": "'size' is not one of state, ",
    "machine list --columns age": "'age' is not one of machine, ",
    "status --watch 1s": "--watch needs a terminal",
    "machine list --label -role": "'-role' is not a label: it must be KEY or KEY=VALUE",
    "machine adopt x --class vanished --yes": "'vanished' is not one of adoptable, ",
    "machine retry --reason x": "no machines selected: give ids, or filters",
    "machine retry --state installed --reason x --yes": "error: no machine matches: nothing was changed",
    "machine release --reason x --yes": "no machines selected: give ids, or filters",
    "machine unquarantine --state unhealthy --reason x --yes": "for machines in the state quarantined: leave",
    # A forgotten scope would stop the fleet, and a mistyped one nothing, while its operator feels safe.
    "pause --reason x": "nothing to pause: give --machine, ",
    "pause --all --machine '' --reason x": "nothing to pause: give --machine, ",
    "pause --all --provider static --reason x": "nothing to pause: give --machine, ",
    "pause --all --cause unexpected --reason x": "nothing to pause: give --machine, ",
    "pause --provider statik --reason x": "'statik' is not one of cherryservers, ",
    "pause --loop recoverers --reason x": "'recoverers' is not one of provisioner, ",
    "pause --loop provisioner --label role --reason x": "the Provisioner works on no single machine",
    "pause --loop provisioner --machine machine-1 --reason x": "the Provisioner works on no single machine",
    "pause --machine machine-1 --machine machine-9 --reason x --yes": "error: no machine matches 'machine-9'",
    "pause --all": "Missing option '--reason'",
    "pause --all --reason x --owner ''": "'' cannot be an owner",
    "pause --all --reason x --owner provisioner": "'provisioner' cannot be an owner",
    "pause --all --reason x --for '2 weeks'": "'2 weeks' is not a duration",
    "simulate --bill": "--bill needs --days",
    "resume": "nothing to resume: give one PAUSE_ID, ",
    "resume abc --all": "nothing to resume: give one PAUSE_ID, ",
    "resume --all --location fra": "nothing to resume: give one PAUSE_ID, ",
    "resume abe": "error: no pause in force has an id that begins with 'abe'",
    "resume abcd": "error: more than one pause",
}

SHA256 = "0f" * 32
INSTALL = "machine install machine-1 --yes"
IMAGE, OS = f"{INSTALL} --sha256 {{}} --image", f"{INSTALL} --os-image"
URL = f"{IMAGE.format(SHA256)} https://x/a.img"
OS_IMAGE = f"r.example:5000/metropolis/os:1.2@sha256:{SHA256}"
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIAHWFzVOjVxDXhUsHlhyv8H7DMqYBXmRq2zMCQUbGDTN"
BARE = "abcd0000-0000-4000-8000-000000000001"

URLS = ["''", "metropolis.img", "http://x/a.img", "s3://bucket/a.img", "https:///a.img", "https://x:port/a.img"]
URLS += ["https://user:password@x/a.img", "'https://x/a b.img'", "'https://x/a.img\n'", "https://x/ä.img"]
URLS += ["https://x/a.img#part", "https://[::1/a.img"]
REFERENCES = ["''", f"https://{OS_IMAGE}", OS_IMAGE.partition("@")[0], OS_IMAGE[:-1], f"user:password@{OS_IMAGE}"]
REFERENCES += [f"r.example/os@md5:{SHA256}", f"r.example/../os@sha256:{SHA256}", f"r.example@sha256:{SHA256}"]
KEYS = ["ssh-ed25519", "AAAAC3Nz", "ssh-dss AAAAB3NzaC1kc3M=", f"ssh-ed25519 {KEY[:-3]}!!!"]
ONCE = ["machine-1", "machine-1 role", "machine-1 role=db role-", "machine-1 role=db role=web"]
ONCE += ["--state running machine-1 role=db"]
TWO = ["--image https://x/a", f"--sha256 {SHA256}", f"--os-image {OS_IMAGE} --sha256 {SHA256}"]
TWO += [f"--os-image {OS_IMAGE} --sha256 {SHA256} --image https://x/a"]
CHANGES = [f"install {BARE} --sha256 {SHA256} --image https://x/a", f"pin-host-key {BARE} ssh-ed25519 {KEY}"]
ALIKE = {
    "' ' is not a reason": [
        f"{command} --reason ' '"
        for command in ("pause --all", *(f"machine {word} machine-1" for word in ("forget", "retry", "unquarantine")))
    ],
    "name machines, or give --all": ["machine adopt --yes", "machine adopt x --all --yes"],
    "must be an https URL without user name or fragment": [f"{IMAGE.format(SHA256)} {url}" for url in URLS],
    "is not a SHA-256": [
        f"{IMAGE.format(wrong)} https://x/a" for wrong in (SHA256[:-1], f"{SHA256}0", f"sha256:{SHA256}", "0g" * 32)
    ],
    "give either --image with --sha256, or --os-image": [f"{INSTALL} {options}" for options in TWO],
    "must be HOST[:PORT]/REPOSITORY[:TAG]@sha256:DIGEST": [f"{OS} {reference}" for reference in REFERENCES],
    "must be the name of a disk below /dev": [f"{OS} {OS_IMAGE} --root-device {name}" for name in ("../a", "/dev/a")],
    "file '/no/such/file' does not exist": [f"{URL} --node-parameters /no/such/file"],
    "file '/' is a directory": [f"{URL} --node-parameters /"],
    "is empty or too long": [f"{URL} --node-parameters {file}" for file in ("/dev/null", "/dev/zero")],
    "must be a serialized NodeParameters": [f"{URL} --node-parameters /proc/version"],
    "KEY is not an SSH host key": [f"machine pin-host-key machine-1 {key}" for key in KEYS],
    "give each label once": [f"machine label {words}" for words in ONCE],
    "is not a label": [f"machine label machine-1 {one}" for one in ("role-=db", f"{64 * 'k'}=v", f"r={129 * 'v'}")],
    "'=db' is not a label: it must be KEY or KEY=VALUE": ["machine label machine-1 =db"],
    "'' is not a label": ["machine label machine-1 -- -"],
    r"'role=d\x1bb' is not a label": ["machine label machine-1 role=d\x1bb"],
    "'shepherd-token=x' is not a label": ["machine label machine-1 shepherd-token=x"],
    # Nothing will ever connect to it, or the Provisioner is about to write what the provider says.
    f"error: machine {BARE} is not provided (being created, or gone)": [
        f"machine label {BARE} role=db",
        *(f"machine {change} {end}" for change in CHANGES for end in ("--dry-run", "--yes")),
    ],
    "error: more than one machine matches 'abcd'": [
        f"{command} abcd"
        for command in ("machine show", "machine forget-host-key", "history", "pause --reason x --machine")
    ],
}
REFUSED |= {line: told for told, lines in ALIKE.items() for line in lines}
"""What is wrong with command lines, in words; an error is of this fleet, and all else wrong usage."""


@pytest.mark.parametrize(("line", "told"), REFUSED.items())
def test_a_wrong_command_line_is_refused_and_changes_nothing(fleet: Fleet, line: str, told: str) -> None:
    """Otherwise an agent would find out on the machine, an hour later."""
    fleet.locate(fleet.started_machine(), "fra")
    for end in (1, 2):
        fleet.plant("machines", machine_id=f"{BARE[:-1]}{end}")
        fleet.plant("pauses", pause_id=f"{BARE[:-1]}{end}", owner="x", reason=str(end))
    before = fleet.content()
    status = 1 if told.startswith("error: ") else 2
    said = CommandLine(fleet.settings).told(*shlex.split(line), status=status)
    assert (told in said, "password" in said) == (True, False)
    assert fleet.content() == before


@pytest.mark.parametrize("words", [(), ("machine",)])
def test_a_group_without_a_command_shows_its_help(words: tuple[str, ...]) -> None:
    assert "Usage: root" in CommandLine(None).read(*words, status=2)


OPTIONS = [(words, each) for words in COMMANDS for each in BY_WORDS[words].params if isinstance(each, TyperOption)]
SINGLE = [(words, each.opts[0]) for words, each in OPTIONS if not (each.is_flag or each.multiple)]


@pytest.mark.parametrize(("words", "option"), SINGLE, ids=str)
def test_an_option_of_one_value_may_not_come_twice(words: tuple[str, ...], option: str) -> None:
    """The first value would be dropped without a word, and its operator believe that it counts."""
    again = f"{option}=2" if option.startswith("--") else f"{option}2"
    assert f"{option} was given twice" in CommandLine(None).told(*words, option, "1", again, status=2)


def test_an_option_means_the_same_in_all_commands() -> None:
    """It must not surprise those who know it already; the glossary has those that several commands share."""
    meanings: defaultdict[str, list[tuple[object, ...]]] = defaultdict(list)
    for words, each in OPTIONS:
        if words[0] not in ("demo", "simulate"):
            meanings[each.opts[0]].append((each.metavar, each.help))
    differ = {name for name, found in meanings.items() if len(set(found)) > 1}
    # A filter or what a command is about; what is counted, replaced; all of what; more formats; by a loop; state, time.
    assert differ == {"--provider", "--location", "--limit", "--replace", "--all", "--output", "--dry-run", "--for"}
    shared = {name for name, found in meanings.items() if len(found) > 3}
    assert {name for name in shared if f"`{name}`" not in GLOSSARY} == set()


def test_the_version_needs_no_database() -> None:
    assert CommandLine(None).read("--version") == f"shepherdctl {version('shepherd')}, BMDB schema version {NEWEST}\n"


PAUSE = "81fe0000-0000-4000-8000-000000000001"
ANYWHERE = {"mac": "machine", "machine wh": "why", "status --out": "--output", "inventory --provider e": "ec2 equinix"}
ANYWHERE |= {"machine list --state q": "quarantined"}
OF_THE_FLEET = {"machine show mach": "machine-1 machine-2", "machine show M": "machine-1 machine-2", "resume 8": PAUSE}
OF_THE_FLEET |= {"machine list --machine machine-2": "machine-2"}
OF_THE_FLEET |= {f"machine list --location {typed}": "fra" for typed in "fF"}


@pytest.mark.parametrize(("typed", "offered"), (ANYWHERE | OF_THE_FLEET).items())
def test_the_shell_completes_commands_and_names(fleet: Fleet, typed: str, offered: str) -> None:
    """There are many, and completion must work before the settings do."""
    fleet.locate(fleet.provided_machine(), "fra")
    fleet.locate(fleet.provided_machine(), "ams")
    fleet.plant("pauses", pause_id=PAUSE, owner="x", reason="")
    words = f"shepherdctl {typed}"
    asked = {"_SHEPHERDCTL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert CommandLine(fleet.settings, asked).process().stdout.split() == offered.split()
    without = CommandLine(None, asked).process()
    assert (without.stdout.split(), without.stderr) == (ANYWHERE.get(typed, "").split(), "")


def test_debug_ends_a_process_with_a_traceback_and_status_1() -> None:
    ended = CommandLine(None).process("--debug", "pauses")
    assert (ended.returncode, ended.stdout, ended.stderr.partition(" ")[0]) == (1, "", "Traceback")


def test_a_full_disk_is_not_called_temporary(fleet: Fleet, shepherdctl: CommandLine) -> None:
    nowhere = CommandLine(None, {"SHEPHERD_BMDB_HOST": "/nowhere"}).told("pauses", status=1)
    assert ("cannot connect to the BMDB" in nowhere, "try again" in nowhere) == (True, True)
    fleet.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '53100' "
        "USING MESSAGE = 'could not extend file: No space left on device'; END $$"
    )
    fleet.sql("CREATE TRIGGER full_disk BEFORE INSERT ON pauses EXECUTE FUNCTION full_disk()")
    try:
        refused = shepherdctl.told("pause", "--all", "--reason", "x", status=1)
    finally:
        fleet.sql("DROP FUNCTION full_disk CASCADE")
    assert refused.endswith("could not extend file: No space left on device (53100)")


@pytest.mark.parametrize("arguments", ["--version", "--help", "machine list -o json"])
def test_output_that_cannot_be_written_is_one_sentence(shepherdctl: CommandLine, arguments: str) -> None:
    """The disk that a listing goes to may be full."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = shepherdctl.process(*arguments.split(), output=full)
    assert (ended.returncode, ended.stderr) == (1, "error: the output cannot be written: No space left on device\n")


def test_messages_come_as_they_are_and_on_one_line(shepherdctl: CommandLine) -> None:
    name = "[red]" + 200 * "x" + "[/red]\x1b[31m"
    told = shepherdctl.process("machine", "show", name).stderr
    assert told == f"error: no machine matches '{name[:-5]}\\x1b[31m'\n"


# The schema.


def test_migrate_brings_an_empty_database_up_to_date(empty_database: BmdbSettings) -> None:
    shepherdctl = CommandLine(empty_database)
    assert shepherdctl.read("db", "migrate", "--dry-run").count("would be applied") == NEWEST
    assert shepherdctl.load("db", "status") == {
        "schema_version": 0,
        "needed_version": NEWEST,
        "usable": False,
        "migrations": [{"number": one.version, "name": one.name} for one in migrations()],
    }
    for arguments in ("machine list", "pauses", "history x", "pause --all --reason x"):
        assert "shepherdctl db migrate" in shepherdctl.told(*arguments.split(), status=1)
    first = shepherdctl.load("db", "migrate")
    assert [migration["number"] for migration in first["migrations"]] == list(range(1, NEWEST + 1))
    assert first["schema_version"] == NEWEST
    assert f"nothing to apply: the BMDB has version {NEWEST}" in shepherdctl.told("db", "migrate")


def test_status_shows_whether_the_database_fits_this_code(own_fleet: Fleet) -> None:
    shepherdctl = CommandLine(own_fleet.settings)
    shown = shepherdctl.read("db", "status")
    assert (shown.count(f"version {NEWEST}"), "up to date" in shown) == (2, True)
    own_fleet.sql(f"INSERT INTO schema_migrations VALUES (9998, 'later', '', {NEWEST})")
    assert "newer than this code, and allows it" in shepherdctl.read("db", "status")
    assert shepherdctl.load("db", "status")["usable"]
    own_fleet.sql("INSERT INTO schema_migrations VALUES (9999, 'later', '', 9999)")
    assert "newer than this code" in shepherdctl.read("db", "status")
    assert "newer" in shepherdctl.told("db", "migrate", status=1)
    own_fleet.sql("DELETE FROM schema_migrations WHERE version = 9999")
    own_fleet.sql("UPDATE schema_migrations SET checksum = 'other' WHERE version = 1")
    assert "edited" in shepherdctl.told("db", "status", status=1)


def test_a_pager_shows_what_is_longer_than_the_terminal(fleet: Fleet) -> None:
    shepherdctl = CommandLine(fleet.settings, {"PAGER": "sed s/^/paged:/"})
    for pauses in (40, 60):
        numbers = f"generate_series(1, {pauses}) AS n"
        fleet.sql(f"INSERT INTO pauses (provider, owner, reason) SELECT n, '', '' FROM {numbers}")
        shown = shepherdctl.on_terminal(200, "pauses").splitlines()
        assert (len(shown) > pauses, {line.startswith("paged:") for line in shown}) == (True, {pauses == 60})
        fleet.sql("DELETE FROM pauses")
