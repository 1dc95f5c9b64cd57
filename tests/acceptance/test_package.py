import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from moto.server import ThreadedMotoServer

from shepherdctl.deployment.template import Build, package
from tests.support.processes import ran

ROOT = Path(__file__).parents[2]
BUCKET = "packages"
OBJECT = re.compile(rf"(s3:/|https?://[^/]+)/{BUCKET}/\S+")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build everything but the packages of others, which take most of the time."""
    source = tmp_path_factory.mktemp("source")
    shutil.copy(ROOT / "template.yaml", source)
    shutil.copy(ROOT / "samconfig.example.toml", source / "samconfig.toml")
    for name in ("templates", "functions", "layers", "agent"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    for name in ("requirements.txt", "unneeded.txt"):
        (source / "layers/shepherd_core" / name).write_text("")
    sam(source, "build", PYTHON=str(ROOT / ".venv-sam/bin/python"), COMPILER="")
    return source / ".aws-sam" / "build"


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def sam(folder: Path, *arguments: str, **environment: str) -> None:
    ran(ROOT / ".venv-sam/bin/sam", *arguments, cwd=folder, env={**os.environ, "SAM_CLI_TELEMETRY": "0", **environment})


def plain(template: Any, objects: dict[str, Any]) -> Any:
    """Return a template with `…` for the name of each object; of nested templates, with the template itself."""
    if isinstance(template, dict):
        return {
            key: plain(objects[value.rpartition("/")[2]], objects) if key == "Location" else plain(value, objects)
            for key, value in template.items()
        }
    if isinstance(template, list):
        return [plain(each, objects) for each in template]
    return OBJECT.sub("…", template) if isinstance(template, str) else template


def test_the_stack_is_that_of_sam(build: Path, url: str, tmp_path: Path) -> None:
    s3 = boto3.client("s3", endpoint_url=url)
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    out = tmp_path / "packaged.yaml"
    sam(build.parents[1], "package", "--s3-bucket", BUCKET, "--output-template-file", str(out), AWS_ENDPOINT_URL=url)
    stored = {
        each["Key"]: yaml.safe_load(s3.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read().decode())
        for each in s3.list_objects_v2(Bucket=BUCKET)["Contents"]
        if each["Key"].endswith(".template")
    }
    ours = package(Build(build), BUCKET, f"{url}/{BUCKET}", "arm64")
    made = {
        key.partition("/")[2]: json.loads(content) for key, content in ours.objects.items() if key.endswith(".template")
    }
    theirs = plain(yaml.safe_load(out.read_text()), stored)
    assert plain(made[ours.key.partition("/")[2]], made) == theirs
    assert json.dumps(theirs, ensure_ascii=False).count("…") > 6


def test_one_layer_is_uploaded(build: Path) -> None:
    """Each has some 15 MB, and only that of the functions' processor is made."""
    objects = package(Build(build), BUCKET, "https://s3", "x86_64").objects
    assert len(objects) == 10  # the layer, six functions, the template and two nested ones
