"""The settings by which functions and operators log in to the BMDB."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from shepherd_core.settings.base import Settings

READER, OPERATOR = "reader", "operator"
"""The roles of people: who may read everything, and who may act on machines."""


class BmdbSettings(Settings):
    """The connection to the BMDB."""

    table = "bmdb"

    bmdb_host: str = Field(description="Host name of the database, or the folder of its Unix socket.")
    bmdb_port: int = Field(5432, ge=1, le=65_535, description="Port of the database.")
    bmdb_name: str = Field("shepherd", description="Name of the database.")
    bmdb_user: str = Field("shepherd", description="User of the database, who owns the schema.")
    bmdb_roles: str | None = Field(
        None,
        pattern="^[a-zA-Z0-9_-]{1,50}$",
        description="Prefix of the functions' own database users, such as PREFIX-updater, which the Migrator makes; "
        "each one's password is in a parameter with the same ending. Unset: all log in as bmdb_user, which is weaker.",
    )
    bmdb_auth: Literal["password", "iam"] = Field(
        "password", description="How functions log in to the database: with a password, or with IAM (RDS and Aurora)."
    )
    bmdb_password_parameter: str | None = Field(
        None, description="Name of the SSM parameter that holds the database password; unset: no password is sent."
    )
    bmdb_ca_source: str | None = Field(
        None,
        description="PEM certificates of the CAs that may sign the database's certificate: a path, https://…, "
        "ssm:NAME or s3://BUCKET/KEY; unset: the system's CAs.",
    )

    @field_validator("bmdb_auth")
    @classmethod
    def _over_tcp(cls, value: str, info: ValidationInfo) -> str:
        host = info.data.get("bmdb_host", "")
        if value == "iam" and host.startswith("/"):
            msg = f"needs the host name of an RDS or Aurora database in bmdb_host, which is {host!r:.200}, a folder"
            raise ValueError(msg)
        return value

    def of_role(self, role: str) -> Self:
        """Return these settings with the login of *role*, a name in ``functions.ROLES``."""
        parameter = self.bmdb_password_parameter
        return self.model_copy(
            update={
                "bmdb_user": f"{self.bmdb_roles}-{role}",
                "bmdb_password_parameter": None if parameter is None else f"{parameter}-{role}",
            }
        )
