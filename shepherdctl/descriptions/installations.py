"""Installations of an operating system, as JSON and as lines of text."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shepherd_core.bmdb.agents.installation import Installation
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation, OSInstallationReport, OSInstallationRequest

from shepherdctl.output.formats import relative
from shepherdctl.output.printing import counted


def plain(installation: Installation) -> dict[str, Any] | None:
    """Return the last request and report in the types of JSON; None: there is neither."""
    request, report = installation.request, installation.report
    if request is None and report is None:
        return None
    return {
        "pending": installation.pending,
        "request": request
        and {
            "generation": request.generation,
            "requested_at": request.requested_at,
            **plain_image(OSInstallationRequest.FromString(request.raw).metropolis),
        },
        "report": report
        and {
            "generation": report.generation,
            "reported_at": report.reported_at,
            "result": report.result,
            "error": OSInstallationReport.FromString(report.raw).error.error or None,
        },
    }


def rows(installation: Mapping[str, Any] | None, now: datetime) -> list[tuple[str, object]]:
    """Return the result of ``plain`` as lines of a name and a value."""
    lines: list[tuple[str, object]] = []
    if installation and (request := installation["request"]):
        pending = ", pending" if installation["pending"] else ""
        lines += [
            (
                "installation",
                f"generation {request['generation']}, requested {relative(request['requested_at'], now)}{pending}",
            ),
            *image_rows(request),
        ]
    if installation and (report := installation["report"]):
        outcome = "succeeded" if report["result"] == "Success" else "failed"
        error = f": {report['error']}" if report["error"] else ""
        when = relative(report["reported_at"], now)
        lines.append(("outcome", f"generation {report['generation']} {outcome}, reported {when}{error}"))
    return lines


def image_rows(wanted: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the image that *wanted*, a request, names, as lines of a name and a value."""
    parameters = wanted["node_parameters_bytes"]
    return [
        ("image", wanted["image_url"] or wanted["os_image"]),
        ("image SHA-256", wanted["image_sha256"]),
        ("root device", wanted["root_device"]),
        ("node parameters", counted(parameters, "byte") if parameters else None),
    ]


def plain_image(wanted: MetropolisInstallation) -> dict[str, Any]:
    """Return the image of *wanted* in the types of JSON; of secrets only the length, or whether there are any."""
    address, query, _ = wanted.image_url.partition("?")
    image = wanted.os_image
    tag = f":{image.tag}" if image.tag else ""
    return {
        "image_url": address + ("?..." if query else "") or None,
        "image_sha256": wanted.image_sha256.hex() or None,
        "os_image": f"{image.host}/{image.repository}{tag}@{image.digest}" if wanted.HasField("os_image") else None,
        "root_device": wanted.root_device or None,
        "node_parameters_bytes": len(wanted.node_parameters),
    }
