import shlex

import pytest

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

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
MISUSED = {
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
}
CHANGES = [f"install {BARE} --sha256 {SHA256} --image https://x/a", f"pin-host-key {BARE} ssh-ed25519 {KEY}"]
IMPOSSIBLE = {
    # Nothing will ever connect to it, or the Provisioner is about to write what the provider says.
    "is not provided (being created, or gone)": [
        f"machine label {BARE} role=db",
        *(f"machine {change} {end}" for change in CHANGES for end in ("--dry-run", "--yes")),
    ],
    "more than one machine matches 'abcd'": [
        f"{command} abcd"
        for command in ("machine show", "machine forget-host-key", "history", "pause --reason x --machine")
    ],
}


@pytest.mark.parametrize(
    ("status", "message", "line"),
    [
        (status, message, line)
        for status, table in ((2, MISUSED), (1, IMPOSSIBLE))
        for message, lines in table.items()
        for line in lines
    ],
)
def test_what_is_refused_is_told_and_changes_nothing(fleet: Fleet, status: int, message: str, line: str) -> None:
    """Otherwise an agent would find out on the machine, an hour later."""
    fleet.started_machine()
    for machine_id in (BARE, f"{BARE[:-1]}2"):
        fleet.plant("machines", machine_id=machine_id)
    before = fleet.content()
    told = CommandLine(fleet.settings).told(*shlex.split(line), status=status)
    assert message in told
    assert "password" not in told
    assert fleet.content() == before
