"""What is told of installations of an operating system."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shepherd_core.bmdb.agents.installation import Installation
from shepherd_core.domain.pb.callback_pb2 import OSInstallationReport, OSInstallationRequest

from shepherdctl.formats import relative
from shepherdctl.output import counted


def described(installation: Installation) -> dict[str, Any] | None:
    """Return what is on record about installations in terms that JSON has; None: nothing ever was."""
    request, report = installation.request, installation.report
    if request is None and report is None:
        return None
    return {
        "pending": installation.pending,
        "request": request
        and {
            "generation": request.generation,
            "requested_at": request.requested_at,
            **_wanted(OSInstallationRequest.FromString(request.raw)),
        },
        "report": report
        and {
            "generation": report.generation,
            "reported_at": report.reported_at,
            "result": report.result,
            "error": OSInstallationReport.FromString(report.raw).error.error or None,
        },
    }


def told(installation: Mapping[str, Any] | None, now: datetime) -> list[tuple[str, object]]:
    """Return what ``described`` returned in words, line by line."""
    rows: list[tuple[str, object]] = []
    if installation and (request := installation["request"]):
        pending = ", pending" if installation["pending"] else ""
        rows += [
            (
                "installation",
                f"generation {request['generation']}, requested {relative(request['requested_at'], now)}{pending}",
            ),
            *image_told(request),
        ]
    if installation and (report := installation["report"]):
        outcome = "succeeded" if report["result"] == "Success" else "failed"
        error = f": {report['error']}" if report["error"] else ""
        when = relative(report["reported_at"], now)
        rows.append(("outcome", f"generation {report['generation']} {outcome}, reported {when}{error}"))
    return rows


def image_told(wanted: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return in words what is to be installed; *wanted* has what a request has."""
    parameters = wanted["node_parameters_bytes"]
    return [
        ("image", wanted["image_url"]),
        ("image SHA-256", wanted["image_sha256"]),
        ("node parameters", counted(parameters, "byte") if parameters else None),
    ]


def public(url: str) -> str:
    """Return *url* without its query, which may be what entitles to fetch it."""
    address, query, _ = url.partition("?")
    return address + ("?..." if query else "")


def _wanted(request: OSInstallationRequest) -> dict[str, Any]:
    """Return what is to be installed; of the node parameters, which may hold secrets, the length alone."""
    metropolis = request.metropolis
    return {
        "image_url": public(metropolis.image_url) or None,
        "image_sha256": metropolis.image_sha256.hex() or None,
        "node_parameters_bytes": len(metropolis.node_parameters),
    }
