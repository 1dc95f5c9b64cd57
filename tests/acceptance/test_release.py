"""What is released, made of the last commit."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / "build" / "release"


def release() -> str:
    """Make it, and return the digests of its files."""
    subprocess.run(["make", "--silent", "release"], cwd=ROOT, check=True)
    return (RELEASE / "SHA256SUMS").read_text(encoding="ascii")


def test_a_commit_makes_the_same_release_twice() -> None:
    first = release()
    assert " shepherd-agent\n" in first
    assert first == release()


def test_the_demo_of_the_wheel_works_in_an_empty_folder(tmp_path: Path) -> None:
    release()
    (wheel,) = RELEASE.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "wheel")
    empty = tmp_path / "empty"
    empty.mkdir()
    code = "import shepherd_core as it; assert 'wheel' in it.__file__; from shepherdctl.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--machines", "3", "--speed", "120"],
        check=False,
        capture_output=True,
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "wheel")},
        text=True,
        timeout=300,
    )
    assert "Everything worked." in done.stdout, done.stdout + done.stderr
    assert list(empty.iterdir()) == []
