"""
What is deployed: the template and its parameters, and the code that was built for it.

In a copy of the repository that is what `make build` makes of ``template.yaml``. An installed package brings it along,
with archives in place of folders, into which an installation would put bytecode.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import stat
import sys
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from shepherd_core.domain.errors import SourceMissing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SOURCE = Path(__file__).parents[2]
"""The copy of the repository, if this is one."""
_INSTALLED = Path(__file__).parent / "built"
_MADE = SOURCE / ".aws-sam" / "build"
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The time of every file in an archive, so that the same files make the same archive."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the template."""

    name: str
    about: str
    default: str | None
    pattern: str
    """What every value matches as a whole."""
    wanted: str
    """What a value must be, in words."""

    @property
    def key(self) -> str:
        """Return its name in the answers: ``LoopMinutes`` is ``loop_minutes``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()


@dataclass(frozen=True)
class Build:
    """The folder with a template and the code that it names."""

    folder: Path

    @cached_property
    def template(self) -> dict[str, Any]:
        """
        Return the template as it was built, with paths in this folder where the code is.

        Raises:
            SourceMissing: it was not built.
        """
        return _read(self.folder / "template.yaml")

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the template by name, in its order."""
        return {name: _parameter(name, about) for name, about in self.template["Parameters"].items()}


def is_checkout() -> bool:
    """Return whether this is a copy of the repository, so that what is deployed must be built."""
    return (SOURCE / "template.yaml").is_file()


def built() -> Build:
    """Return what was built here or, of an installed package, what it brings along."""
    return Build(_MADE if is_checkout() else _INSTALLED)


def parameters() -> dict[str, Parameter]:
    """Return the parameters of the template by name, also before it is built."""
    return _unbuilt().parameters


def runtime() -> str:
    """Return the runtime of the functions, such as python3.13, also before the template is built."""
    return str(_unbuilt().template["Globals"]["Function"]["Runtime"])


def _unbuilt() -> Build:
    return Build(SOURCE if is_checkout() else _INSTALLED)


@dataclass(frozen=True, slots=True)
class Package:
    """A template whose code and nested templates are objects of a bucket, named by their digests, and these objects."""

    key: str
    """Of the template itself."""
    objects: Mapping[str, bytes]


def package(build: Build, bucket: str, url: str, architecture: str) -> Package:
    """
    Return what `sam package` makes of *build*: the same template, but for the names of the objects.

    Objects are at *url* with a slash and their key. The layer for another processor than *architecture* is left out:
    its resource, which is not made, names the other one.

    Raises:
        SourceMissing: something was not built.
    """
    packing = _Packing(build, bucket, url, architecture, {})
    return Package(packing.template(""), packing.objects)


@dataclass(frozen=True, slots=True)
class _Packing:
    build: Build
    bucket: str
    url: str
    architecture: str
    objects: dict[str, bytes]

    def template(self, folder: str) -> str:
        """Return the key of the template in *folder*, with objects in the places of paths."""
        template = _read(self.build.folder / folder / "template.yaml")
        resources = [each for each in template["Resources"].values() if isinstance(each, dict)]  # the others are loops
        layers = {
            each["Metadata"]["BuildArchitecture"]: each["Properties"]["ContentUri"]
            for each in resources
            if each["Type"] == "AWS::Serverless::LayerVersion"
        }
        for each in resources:
            properties = each.get("Properties", {})
            match each["Type"]:
                case "AWS::Serverless::Function":
                    properties["CodeUri"] = self._code(properties["CodeUri"])
                case "AWS::Serverless::LayerVersion":
                    properties["ContentUri"] = self._code(layers[self.architecture])
                case "AWS::Serverless::Application":
                    properties["Location"] = f"{self.url}/{self.template(str(Path(properties['Location']).parent))}"
        for name, mapping in template.get("Mappings", {}).items():
            if name.startswith("SAMCodeUri"):  # where `sam build` puts the code of what a loop makes
                for of_loop in mapping.values():
                    of_loop["CodeUri"] = self._code(of_loop["CodeUri"])
        return self._store(json.dumps(template, indent=1).encode(), "template")

    def _code(self, path: str) -> str:
        return f"s3://{self.bucket}/{self._store(_archive(self.build.folder / path), 'zip')}"

    def _store(self, content: bytes, suffix: str) -> str:
        key = f"code/{hashlib.sha256(content).hexdigest()}.{suffix}"
        self.objects[key] = content
        return key


def pack(build: Path) -> None:
    """Replace the folders of code in *build* by their archives, from which ``package`` makes the same."""
    for folder in sorted(path for path in build.iterdir() if path.is_dir() and not (path / "template.yaml").exists()):
        _packed(folder).write_bytes(_archive(folder))
        shutil.rmtree(folder)


def _packed(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.zip")


def _archive(folder: Path) -> bytes:
    """Return the files of *folder* as a ZIP archive; the same files make the same bytes."""
    if _packed(folder).exists():
        return _packed(folder).read_bytes()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, mode in _files(folder):
            entry = zipfile.ZipInfo(str(path.relative_to(folder)), _OLDEST)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    found = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    if not found:
        raise SourceMissing(f"{folder} is not there: run make build")
    for path in found:
        yield path, 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]  # PyYAML publishes no types
    """Reads templates. The short forms of CloudFormation's functions are in no parameter, and are left out."""


_Loader.add_multi_constructor("!", lambda *_: None)


def _read(path: Path) -> dict[str, Any]:
    try:
        template: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - it is a safe one
    except OSError as error:
        raise SourceMissing(f"{path} cannot be read: {error.strerror}; run make build") from error
    return template


def _parameter(name: str, of: Mapping[str, Any]) -> Parameter:
    allowed = of.get("AllowedValues", [])
    pattern = "|".join(map(re.escape, allowed)) or of["AllowedPattern"]
    wanted = of.get("ConstraintDescription") or f"must be one of {', '.join(allowed)}"
    return Parameter(name, of["Description"], of.get("Default"), pattern, wanted)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
