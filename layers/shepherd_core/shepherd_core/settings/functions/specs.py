"""
The functions: what each is called, its settings, its time, and the work that it does on machines.

``SPECS`` is the one table of them; the names of loops, functions and database roles
follow from it. The builder of a loop is the function of its name in ``wiring/loops.py``.
A setting has its default in its type and nowhere else, and a description with unit,
meaning and range. ``sources`` says where values come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.domain.machine import Process
from shepherd_core.settings.functions.bmdb import OPERATOR, READER
from shepherd_core.settings.functions.loops import (
    InitializerSettings,
    ProvisionerSettings,
    RecovererSettings,
    UpdaterSettings,
)
from shepherd_core.settings.functions.services import AgentApiSettings, MigratorSettings

if TYPE_CHECKING:
    from shepherd_core.settings.base import Settings


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A function."""

    settings: type[Settings]
    """Its table in the document has the name of the function."""
    seconds: int
    """How long an invocation may take, as the template says."""
    is_loop: bool = True
    """Whether a schedule starts it."""
    process: Process | None = None
    """The work that it does on single machines, if it is a loop that claims them."""
    owns_schema: bool = False
    """It logs in as the owner of the schema, and has no role of its own."""

    @property
    def name(self) -> str:
        """Return its name: that of its folder in ``functions/`` and of its event."""
        return str(self.settings.table)

    @property
    def role(self) -> str:
        """Return the name of its role in the database."""
        return self.name.replace("_", "-")


SPECS = (
    FunctionSpec(MigratorSettings, 300, is_loop=False, owns_schema=True),
    FunctionSpec(ProvisionerSettings, 300),
    FunctionSpec(InitializerSettings, 300, process=Process.AGENT_START),
    FunctionSpec(AgentApiSettings, 10, is_loop=False),
    FunctionSpec(RecovererSettings, 180, process=Process.RECOVERY),
    FunctionSpec(UpdaterSettings, 180),
)
"""In the order in which each makes work for the next."""

FUNCTIONS = {spec.name: spec.settings for spec in SPECS}
FUNCTION_SECONDS = {spec.name: spec.seconds for spec in SPECS}
LOOPS = tuple(spec.name for spec in SPECS if spec.is_loop)
"""In the order of ``loop_minutes``."""
PROCESS_OF_LOOP = {spec.name: spec.process for spec in SPECS if spec.process is not None}
"""The loops that work on single machines."""
PAUSED_AS: dict[str, str] = {spec.name: spec.process or spec.name for spec in SPECS if spec.is_loop}
"""How a pause of a loop is stored."""
ROLES = (*(spec.role for spec in SPECS if not spec.owns_schema), READER, OPERATOR)
"""Those with a database user of their own if ``bmdb_roles`` is set: functions, and people."""
