"""Reads and sets what a server boots next: its disks or, if armed, an installation or a rescue system."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.providers.hetzner.api import AlreadyEnabled
from shepherd_core.providers.hetzner.objects import BootEntry, fingerprint
from shepherd_core.providers.kit.api_object import parse

if TYPE_CHECKING:
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.providers.kit.http import HttpApi
    from shepherd_core.providers.kit.registered_key import RegisteredKey
    from shepherd_core.settings.providers.hetzner import HetznerSettings


class BootConfiguration:
    """The boot configurations of an account; a server that has one with our SSH key was armed by Shepherd."""

    def __init__(self, settings: HetznerSettings, api: HttpApi, key: RegisteredKey) -> None:
        self._system = settings.reinstall
        self._choice = {"dist": settings.os, "lang": "en"} if self._system == "linux" else {"os": "linux"}
        self._api = api
        self._key = key

    def arm(self, number: int, key: str, deadline: Deadline) -> None:
        """
        Activate the reinstallation for the next boot, with the SSH key that has the id *key*.

        Raises:
            ProviderUnavailable: unknown whether it is active.
            ProviderRefused: Robot refuses, or another client armed the server.
        """
        try:
            self._activate(number, key, deadline)
        except AlreadyEnabled:  # it was armed meanwhile, or Robot's answer was out of date
            self.disarm(number, deadline)
            try:
                self._activate(number, key, deadline)
            except AlreadyEnabled as error:
                raise ProviderUnavailable(f"{error}; server {number} is being armed by another client") from error

    def disarm(self, number: int, deadline: Deadline) -> None:
        """
        Make the next boot an ordinary one.

        Raises:
            ProviderRefused: the server was not armed by Shepherd.
        """
        try:
            answer = self._api.get(f"/boot/{number}", deadline)
        except NotSupported:  # it can only boot from its disks
            return
        for kind, keys in parse(BootEntry, answer, f"the boot configurations of {number}").active():
            if fingerprint(self._key.line()) not in keys:
                raise _armed_by_others(number, kind)
            self._api.delete(f"/boot/{number}/{kind}", deadline)

    def try_to_disarm(self, number: int, deadline: Deadline) -> None:
        """Cancel the reinstallation; it may stay if that fails."""
        with suppress(ShepherdError):
            self._api.delete(f"/boot/{number}/{self._system}", deadline)

    def _activate(self, number: int, key: str, deadline: Deadline) -> None:
        try:
            with self._key.watched():
                self._api.post(f"/boot/{number}/{self._system}", {**self._choice, "authorized_key": key}, deadline)
        except ProviderUnavailable:
            self.try_to_disarm(number, deadline)
            raise


def _armed_by_others(number: int, kind: str) -> ProviderRefused:
    return ProviderRefused(
        f"server {number} is armed with the boot configuration {kind!r}, not by Shepherd: a reset would start it. "
        "Deactivate it in Robot, or reset the server there"
    )
