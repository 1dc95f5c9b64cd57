import itertools
import re
from pathlib import Path

from shepherd_core.settings.base import PLACEHOLDER

from tests.support.deployment.deployments import ROOT

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/shepherd.toml"))
BUCKET = "my-shepherd-bucket"
VALUES = {
    "bucket": BUCKET,
    "bmdb_host": "db.example.com",
    "bmdb_login": "db-ABC123DEF456",
    "vpc": "subnet-0a1b2c3d,subnet-1a1b2c3d:sg-0a1b2c3d",
    "subnets": "subnet-0a1b2c3d,subnet-1a1b2c3d",
    "security_groups": "sg-1a1b2c3d",
    "image": "ami-0a1b2c3d",
}
"""Of keys whose values have a form; the others get a text."""


def filled_in(folder: Path) -> dict[str, str]:
    files = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*") if path.suffix != ".md"}
    return {name: _filled_in(text) for name, text in files.items()}


def _filled_in(text: str) -> str:
    numbers = itertools.count(1)
    text = text.replace(f"s3://{PLACEHOLDER}/", f"s3://{BUCKET}/")
    text = re.sub(
        rf'^(\w+) = "{PLACEHOLDER}"',
        lambda found: f'{found[1]} = "{VALUES.get(found[1], "https://ours.example.com")}"',
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(rf'"Addr": "{PLACEHOLDER}"', lambda _: f'"Addr": "10.20.1.{next(numbers)}"', text)
    return re.sub(rf'"https://{PLACEHOLDER}"', lambda _: f'"https://10.30.1.{next(numbers)}"', text)
