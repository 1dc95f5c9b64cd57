"""Errors of requests to the provider. The package draws the whole tree."""

from __future__ import annotations

from shepherd_core.domain.errors import Fault, ShepherdError


class ProviderError(ShepherdError):
    """A request to the provider failed."""

    fault = Fault.PROVIDER


class ProviderUnavailable(ProviderError):
    """The provider did not answer, or asked to retry later."""

    retryable = True

    def __init__(self, message: str | None = None, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        """Seconds after which the provider asks to be called again, if it says so."""
        super().__init__(message)


class ProviderRefused(ProviderError):
    """The provider refused, and will refuse until something is changed."""


class ProviderUnusable(ProviderRefused):
    """The provider rejects our credentials or settings; no machine is at fault."""

    def __init__(self, message: str | None = None, *, forbidden: bool = False) -> None:
        self.forbidden = forbidden
        """It knows the credential and forbids this request; it may allow the same for another machine or capacity."""
        super().__init__(message)


class MachineNotFound(ProviderError):
    """The provider does not know that machine."""


class CapacityTaken(ProviderError):
    """Another machine occupies this capacity."""


class NotSupported(ProviderError):
    """This provider cannot do that."""


class ListingInvalid(ProviderError):
    """The provider's listing is incomplete or contradicts itself, so it must not be used."""
