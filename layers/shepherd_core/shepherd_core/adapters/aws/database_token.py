"""Tokens that RDS and Aurora take instead of a password: IAM database authentication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.adapters import aws
from shepherd_core.domain.errors import SecretMissing, SecretUnavailable

if TYPE_CHECKING:
    from shepherd_core.settings.functions.bmdb import BmdbSettings


class DatabaseTokens:
    """
    Tokens for one database and user. Keep one between warm invocations.

    A token opens connections for 15 minutes; open connections stay open. It is
    signed locally with this function's credentials, without a request.
    """

    def __init__(self, settings: BmdbSettings) -> None:
        self._settings = settings
        self._rds: Any = None

    def make(self) -> str:
        """
        Return a new token.

        Raises:
            SecretMissing: there are no credentials or no region to sign with.
            SecretUnavailable: the credentials cannot be read now.
        """
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - brings boto3 along

        settings = self._settings
        try:
            if self._rds is None:
                self._rds = aws.client("rds")
            token: str = self._rds.generate_db_auth_token(
                DBHostname=settings.bmdb_host, Port=settings.bmdb_port, DBUsername=settings.bmdb_user
            )
        except BotoCoreError as error:
            meaning, code = aws.classify(error)
            kind = SecretUnavailable if meaning is aws.AwsFault.PASSING else SecretMissing
            raise kind(f"no token for {settings.bmdb_user}@{settings.bmdb_host} could be signed ({code})") from error
        return token
