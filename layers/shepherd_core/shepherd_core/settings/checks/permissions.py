"""The rules between settings that follow from the permissions of a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.settings.checks.rule import SettingsRule

if TYPE_CHECKING:
    from shepherd_core.settings.checks.rule import Broken

DOCUMENTS = {
    "static_list": ("provider", "machines.json"),
    "redfish_list": ("provider", "machines.json"),
    "redfish_ca_source": ("provider", "bmc-ca.pem"),
    "bmdb_ca_source": ("migrator", "bmdb-ca.pem"),
    "agent_ca_source": ("initializer", "agent-ca.pem"),
}
"""
Settings that name a document: a function that has the setting, and the document's name in S3 and SSM, as the
permissions of a deployment have it.
"""


def _named(document: str) -> Broken:
    def broken(source: str | None) -> str | None:
        if source is None or not source.startswith(("s3://", "ssm:")) or source.endswith(f"/documents/{document}"):
            return None
        kind = "s3://BUCKET" if source.startswith("s3://") else "ssm:/STACK"
        return f"functions may read {kind}/documents/{document} and no other: rename it"

    return broken


def _launch_template(template: str | None) -> str | None:
    if template is None or template.startswith("lt-"):
        return None
    return "permissions name launch templates by id: set the id, lt-…"


def _groups(groups: str | None, template: str | None) -> str | None:
    if groups or template:
        return None
    return "functions may not launch into the default group: set ec2_security_groups or ec2_launch_template"


def _unchecked_agent(owner: str | None, sha256: str | None) -> str | None:
    if owner is None or sha256 is not None:
        return None
    return (
        "whatever is in the bucket would run as root on the machines: set agent_sha256 to what agent/build.py prints, "
        'or to "any" to accept that'
    )


RULES = (
    SettingsRule(("deployment.bucket_owner", "initializer.agent_sha256"), _unchecked_agent),
    *(SettingsRule((f"{function}.{name}",), _named(document)) for name, (function, document) in DOCUMENTS.items()),
    SettingsRule(("provider.ec2_launch_template",), _launch_template),
    SettingsRule(("provider.ec2_security_groups", "provider.ec2_launch_template"), _groups),
)
