"""Errors of requests to the provider. The package draws the whole tree."""

from __future__ import annotations

from shepherd_core.domain.errors import Fault, ShepherdError
from shepherd_core.domain.errors.kinds import FailureKind


class ProviderError(ShepherdError):
    """A request to the provider failed."""

    fault = Fault.PROVIDER


class ProviderUnavailable(ProviderError):
    """The provider did not answer, or asked to retry later."""

    kind = FailureKind.PROVIDER_UNAVAILABLE
    retryable = True

    def __init__(self, message: str | None = None, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        """Seconds after which the provider asks to be called again, if it says so."""
        super().__init__(message)


class ProviderNotAsked(ProviderUnavailable):
    """The provider was not asked, because it failed for other machines just before."""

    kind = FailureKind.PROVIDER_NOT_ASKED
    fault = Fault.OURS


class ProviderRefused(ProviderError):
    """The provider refused, and will refuse until something is changed."""

    kind = FailureKind.PROVIDER_REFUSED


class ProviderUnusable(ProviderRefused):
    """The provider rejects our credentials or settings; no machine is at fault."""

    kind = FailureKind.PROVIDER_UNUSABLE


class ProviderForbidden(ProviderUnusable):
    """The provider knows our credential and forbids this request; it may allow the same for another machine."""

    kind = FailureKind.PROVIDER_FORBIDDEN


class MachineNotFound(ProviderError):
    """The provider does not know that machine."""

    kind = FailureKind.MACHINE_NOT_FOUND


class CapacityTaken(ProviderError):
    """Another machine occupies this capacity."""

    kind = FailureKind.CAPACITY_TAKEN


class NotSupported(ProviderError):
    """This provider cannot do that."""

    kind = FailureKind.NOT_SUPPORTED


class ListingInvalid(ProviderError):
    """The provider's listing is incomplete or contradicts itself, so it must not be used."""

    kind = FailureKind.LISTING_INVALID
