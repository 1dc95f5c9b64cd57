"""The machine lists of the providers that have one."""

from collections.abc import Callable

from shepherd_core.providers.kit.machine_list import MachineList
from shepherd_core.providers.redfish.machine_list import redfish_list

LISTS: dict[str, Callable[[Callable[[], bytes]], MachineList]] = {"static": MachineList, "redfish": redfish_list}
"""By provider."""


def credentials(provider: str, content: bytes) -> list[str]:
    """
    Return the SSM parameters that a list names, each once; of a list without BMCs, none.

    Raises:
        ListingInvalid: the list is wrong; names every error.
    """
    entries = LISTS[provider](lambda: content).parse(content)
    return list(dict.fromkeys(entry["Credential"] for entry in entries if "Credential" in entry))
