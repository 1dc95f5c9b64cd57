"""The pace of this process's functions: a simulation sets another one before it builds the first."""

from __future__ import annotations

from shepherd_core.domain.pace import Pace

current = Pace()
