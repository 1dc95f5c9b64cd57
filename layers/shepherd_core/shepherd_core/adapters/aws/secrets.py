"""Secrets: SSM parameters of type SecureString, read through Powertools with a short cache."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

from shepherd_core.adapters import aws
from shepherd_core.domain.errors import SecretMissing, SecretUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from aws_lambda_powertools.utilities.parameters import SSMProvider

_EXISTS = "ParameterAlreadyExists"


class SsmSecretStore:
    """
    Secrets by name. Keep one between warm invocations: it caches values for *max_age_seconds*.

    Imports and connects to nothing before the first secret is read. Safe to use
    from any thread. No value appears in an error or in the repr.
    """

    def __init__(self, max_age_seconds: int = 300) -> None:
        self._max_age_seconds = max_age_seconds
        self._parameters: SSMProvider | None = None
        self._invalidated: set[str] = set()
        self._lock = threading.Lock()

    def get(self, name: str) -> str:
        """
        Return the secret *name*, decrypted; at most ``max_age_seconds`` old.

        Raises:
            SecretMissing: there is no such parameter, or the caller may not read or decrypt it.
            SecretUnavailable: SSM did not answer, or asks to retry later.
        """
        value = self.find(name)
        if value is None:
            raise SecretMissing(f"secret {name!r}: there is no such SSM parameter; create it as a SecureString")
        return value

    def find(self, name: str) -> str | None:
        """
        Return the secret *name* as ``get``; None if there is no such parameter.

        Raises:
            SecretMissing: the caller may not read or decrypt it.
            SecretUnavailable: SSM did not answer, or asks to retry later.
        """
        with self._lock:
            return self._read(name)

    def put(self, name: str, value: str, *, secret: bool = True, replace: bool = False, kms_key: str = "") -> None:
        """
        Store *value* as *name*, encrypted with *kms_key* or AWS's own if it is *secret*.

        Raises:
            SecretMissing: the caller may not do it, or the parameter exists and *replace* is not set.
            SecretUnavailable: SSM did not answer, or asks to retry later. Call again.
        """
        if not self._store(name, value, secret=secret, replace=replace, kms_key=kms_key):
            message = f"secret {name!r}: SSM refuses to write it ({_EXISTS})"
            raise SecretMissing(message)

    def create_once(self, name: str, make: Callable[[], str]) -> str:
        """
        Return the secret *name*; if it does not exist, store the result of *make* and return it.

        Any number of callers may do this at once, and all return the same secret:
        the store accepts one, and the others read that one.

        Raises:
            SecretMissing: the caller may not read the parameter, or may not create it.
            SecretUnavailable: SSM did not answer, asks to retry later, or does not show yet what
                another caller made. Call again.
        """
        value = self.find(name)
        if value is not None:
            return value
        made = make()
        if self._store(name, made):
            return made
        value = self.find(name)
        if value is None:  # SSM may show a new parameter only a moment later
            message = f"secret {name!r}: another function just created it, and SSM does not show it yet"
            raise SecretUnavailable(message)
        return value

    def kms_key(self, name: str) -> str:
        """
        Return the KMS key that encrypts *name*, ``alias/aws/ssm`` if it is AWS's own. Functions may not ask.

        Raises:
            SecretMissing: there is no such parameter, it is not encrypted, or the caller
                may not ask (``ssm:DescribeParameters``).
            SecretUnavailable: SSM did not answer, or asks to retry later.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - loaded with boto3 already

        filters = [{"Key": "Name", "Option": "Equals", "Values": [name]}]
        try:
            pages = self._provider(name).client.get_paginator("describe_parameters").paginate(ParameterFilters=filters)
            found = [each["KeyId"] for page in pages for each in page["Parameters"] if "KeyId" in each]
        except (BotoCoreError, ClientError) as error:
            _refuse(name, "describe", *aws.classify(error), error)
        if not found:
            raise SecretMissing(f"secret {name!r}: SSM names no key that encrypts it")
        return str(found[0])

    def delete(self, name: str) -> None:
        """
        Delete *name*. Functions may not do this.

        Raises:
            SecretMissing: the caller may not do it, or there is no such parameter.
            SecretUnavailable: SSM did not answer, or asks to retry later.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - loaded with boto3 already

        try:
            self._provider(name).client.delete_parameter(Name=name)
        except (BotoCoreError, ClientError) as error:
            _refuse(name, "delete", *aws.classify(error), error)
        self.invalidate(name)

    def invalidate(self, name: str) -> None:
        """Drop *name* from the cache, for example because its value was refused."""
        with self._lock:
            self._invalidated.add(name)

    def _store(self, name: str, value: str, *, secret: bool = True, replace: bool = False, kms_key: str = "") -> bool:
        """As ``put``; return False if the parameter exists and *replace* is not set."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - loaded with boto3 already

        try:
            self._provider(name).client.put_parameter(
                Name=name,
                Value=value,
                Type="SecureString" if secret else "String",
                Overwrite=replace,
                **({"KeyId": kms_key} if secret and kms_key else {}),
            )
        except (BotoCoreError, ClientError) as error:
            meaning, code = aws.classify(error)
            if code == _EXISTS:
                return False
            # Not chained: the error may repeat the request, which holds the secret.
            _refuse(name, "write", meaning, code, None)
        self.invalidate(name)
        return True

    def _read(self, name: str) -> str | None:
        """Return the value of *name*, or None if there is no such parameter."""
        from aws_lambda_powertools.utilities.parameters.exceptions import (  # noqa: PLC0415 - brings boto3 along
            GetParameterError,
        )

        try:
            value = self._provider(name).get(
                name, max_age=self._max_age_seconds, decrypt=True, force_fetch=name in self._invalidated
            )
        except GetParameterError as error:
            # Powertools raises one type for all errors; the real error is its context.
            meaning, code = aws.classify(error.__context__)
            if meaning is aws.AwsFault.ABSENT:
                return None
            _refuse(name, "read", meaning, code, error.__context__)
        self._invalidated.discard(name)
        return str(value)

    def _provider(self, name: str) -> SSMProvider:
        if self._parameters is None:
            from aws_lambda_powertools.utilities.parameters import SSMProvider  # noqa: PLC0415 - brings boto3 along
            from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - the same

            try:
                self._parameters = SSMProvider(boto3_client=aws.client("ssm"))
            except BotoCoreError as error:
                _refuse(name, "read", *aws.classify(error), error)
        return self._parameters


def _refuse(name: str, wanted: str, meaning: aws.AwsFault, code: str, cause: BaseException | None) -> NoReturn:
    """Raise our error for *meaning*; *wanted* is the operation: read, write, describe or delete."""
    if meaning is aws.AwsFault.PASSING:
        raise SecretUnavailable(f"secret {name!r}: SSM could not {wanted} it now ({code})") from cause
    if meaning is aws.AwsFault.DENIED:
        raise SecretMissing(f"secret {name!r}: no permission to {wanted} it ({code})") from cause
    raise SecretMissing(f"secret {name!r}: cannot {wanted} it: {code}") from cause
