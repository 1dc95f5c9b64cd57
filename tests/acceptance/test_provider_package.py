import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ran

ROOT = Path(__file__).parents[2]


def run(folder: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, *arguments, cwd=ROOT, env={"PYTHONPATH": str(folder), "COLUMNS": "400", **environment})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    command = (sys.executable, "-m", "shepherdctl", "provider", "new", "class")  # a word of Python's own
    ran(*command, cwd=folder, env={"PYTHONPATH": str(ROOT)})
    return folder / "shepherd-class"


@pytest.fixture(scope="module")
def installed(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target")
    run(folder, *pip, folder, written)
    return folder


def test_a_new_provider_keeps_the_contract_as_it_is_written(written: Path) -> None:
    told = run(written, "-m", "pytest", "--provider", "shepherd_class", "-p", "no:cacheprovider").stdout
    assert re.search(r"\b[2-9]\d passed", told)


def test_an_installed_provider_is_one_like_all_others(installed: Path, tmp_path: Path) -> None:
    document = tmp_path / "settings.toml"
    document.write_text('version = 1\n[provider.class]\napi_url = "https://api.example.com"\n')
    assert run(installed, "-m", "shepherdctl", "settings", "check", document).stderr.endswith(", provider class\n")
    blank = run(installed, "-m", "shepherdctl", "settings", "init", "--provider", "class")
    assert "\n[provider.class]\n" in blank.stdout
    assert "|class>" in run(installed, "-m", "shepherdctl", "causes", "-h").stdout
    program = """
from shepherd_core.settings.functions.loops import ProvisionerSettings
from shepherd_core.wiring.providers import load
settings, provider = load(ProvisionerSettings)
print(settings.provider, provider.name, *sorted(provider.capabilities))
"""
    parameter = "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER"
    given = {"SHEPHERD_SETTINGS": str(document), "SHEPHERD_BMDB_HOST": "/nowhere", parameter: "/unused"}
    done = run(installed, "-c", program, **given)
    assert (done.stdout, done.stderr) == ("class class create reboot release\n", "")
