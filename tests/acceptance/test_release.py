import os
import sys
import zipfile
from pathlib import Path

import pytest

from shepherdctl.deployment import template
from tests.support.processes import ran

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / "build" / "release"


def release() -> str:
    ran("make", "--silent", "release", cwd=ROOT)
    return (RELEASE / "SHA256SUMS").read_text(encoding="ascii")


def test_a_commit_makes_the_same_release_twice() -> None:
    first = release()
    files = {line.split()[1] for line in first.splitlines()}
    assert files > {"sbom.json", "shepherd-agent", "people.yaml", "database.yaml"}
    assert first == release()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release()
    folder = tmp_path_factory.mktemp("wheel")
    (packed,) = RELEASE.glob("*.whl")
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(folder)
    return folder


def run(wheel: Path, empty: Path, code: str, *arguments: str) -> str:
    """Return what Python prints that runs *code* with the packages of the *wheel*, in an *empty* folder."""
    code = f"import shepherd_core as it; assert 'wheel' in it.__file__; {code}"
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    told = ran(sys.executable, "-c", code, *arguments, cwd=empty, env=environment, timeout=300).stdout
    assert list(empty.iterdir()) == []
    return told


def test_the_demo_of_the_wheel_works_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    code = "from shepherdctl.__main__ import main; main()"
    assert "Everything worked." in run(wheel, tmp_path, code, "demo", "--machines", "3", "--speed", "120")


@pytest.mark.parametrize("architecture", ["arm64", "x86_64"])
def test_the_wheel_deploys_what_a_checkout_builds(architecture: str, wheel: Path, tmp_path: Path) -> None:
    """Without SAM, and whatever bytecode an installation puts beside Python files."""
    code = (
        "import sys; from shepherdctl.deployment.template import built, package; made = package(built(), *sys.argv[1:])"
    )
    given = ("bucket", "https://s3/bucket", architecture)
    told = run(wheel, tmp_path, f"{code}; print(made.key, *made.objects)", *given)
    made = template.package(template.Build(ROOT / "build" / "source" / ".aws-sam" / "build"), *given)
    assert told.split() == [made.key, *made.objects]
