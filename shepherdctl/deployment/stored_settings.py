"""The deployed settings document: read from S3, changed at one key, and written back if nobody else changed it."""

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shepherd_core.adapters import aws, locations
from shepherd_core.domain.errors import ConfigError, SourceError, SourceMissing
from shepherd_core.settings.document import LIMIT_BYTES
from shepherd_core.settings.keys import TOP, path
from shepherd_core.wiring.settings import bucket_owner

_CHANGED_MEANWHILE = {"PreconditionFailed", "ConditionalRequestConflict"}
_ENCRYPTION = ("ServerSideEncryption", "SSEKMSKeyId")
_HEADER = re.compile(r"\s*\[([^\[\]#]*)\]\s*(#.*)?$")
_VALUE = r"""("(?:\\.|[^"\\])*"|'[^']*'|[^#]*?)"""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was read."""

    source: str
    content: bytes
    etag: str | None
    """None: there was none."""
    encryption: Mapping[str, str]
    """What is said when it is written."""
    owner: str | None
    """The account whose bucket it must be."""


def read(source: str) -> Stored:
    """
    Return the document at *source*. It must be in S3: only there does a write notice the change of somebody else.

    Raises:
        SourceError: it is elsewhere, or cannot be read.
    """
    if locations.scheme(source) != "s3":
        raise SourceError(
            f"{source!r} is not in S3: this command changes a document at s3://BUCKET/KEY; edit others by hand"
        )
    with locations.s3_errors(source):
        owner = bucket_owner()
        answer = locations.get_object(aws.client("s3"), source, owner)
        with closing(answer["Body"]) as body:
            content = body.read(LIMIT_BYTES + 1)
    encryption = {name: answer[name] for name in _ENCRYPTION if name in answer}
    return Stored(source, content, answer["ETag"], encryption, owner)


def replace(stored: Stored, content: bytes) -> None:
    """
    Write *content* in place of *stored*.

    The request is made once: a second one would be refused because of the first.

    Raises:
        SourceMissing: somebody else has changed the object, or it may not be written.
        SourceUnavailable: no answer; the object may have been written.
    """
    from botocore.exceptions import ClientError  # noqa: PLC0415 - slow to import

    bucket, _, key = stored.source.partition("://")[2].partition("/")
    conditions = {"IfNoneMatch": "*"} if stored.etag is None else {"IfMatch": stored.etag}
    if stored.owner:
        conditions["ExpectedBucketOwner"] = stored.owner
    with locations.s3_errors(stored.source):
        try:
            aws.client("s3", attempts=1).put_object(
                Bucket=bucket, Key=key, Body=content, **stored.encryption, **conditions
            )
        except ClientError as error:
            if error.response["Error"]["Code"] in _CHANGED_MEANWHILE:
                raise SourceMissing(
                    f"{stored.source!r} was changed by somebody else meanwhile, and is left as it is: run this again"
                ) from error
            raise


def with_value(text: str, table: str, name: str, value: Any) -> str:
    """
    Return the document *text* with one value set, and everything else, comments included, as it was.

    Raises:
        ConfigError: the key is not on a line of its own, so that it must be edited by hand.
    """
    expected = tomllib.loads(text)
    changed = _edited(text, table, name, json.dumps(value, ensure_ascii=False))
    try:
        section = expected
        for part in table.split(".") if table else ():
            section = section.setdefault(part, {})
        section[name] = value
        if tomllib.loads(changed) == expected:
            return changed
    except (AttributeError, TypeError, tomllib.TOMLDecodeError):
        pass  # such as a table in braces, which nothing can be added to below, or a key in the place of a table
    raise ConfigError(
        [f"{path(table, name)} is written in the document in a form that this command cannot change: edit it by hand"]
    )


def _edited(text: str, table: str, name: str, written: str) -> str:
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    headers = [(number, found[1].strip()) for number, line in enumerate(lines) if (found := _HEADER.match(line))]
    top = next((number for number, line in enumerate(lines) if re.match(r"\s*version\s*=", line)), 0)
    begin = top if table == TOP else next((number for number, each in headers if each == table), None)
    if begin is None:
        lines += ["", f"[{table}]", f"{name} = {written}"]
    else:
        end = next((number for number, _ in headers if number > begin), len(lines))
        section = range(0 if table == TOP else begin, end)
        if (number := _first(rf"\s*{name}\s*=", lines, section)) is not None:
            lines[number] = re.sub(
                rf"^(\s*{name}\s*=\s*){_VALUE}(\s*(?:#.*)?)$",
                lambda found: found[1] + written + found[3],
                lines[number],
            )
        else:  # below the line that shows the default, if there is one
            shown = _first(rf"#\s*{name}\s*=", lines, section)
            lines.insert((begin if shown is None else shown) + 1, f"{name} = {written}")
    return ending.join([*lines, ""])


def _first(pattern: str, lines: list[str], section: range) -> int | None:
    return next((number for number in section if re.match(pattern, lines[number])), None)
