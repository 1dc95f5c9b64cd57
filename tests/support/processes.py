import os
import resource
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def ran(*command: str | Path, status: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def below(pid: int | None = None) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        with suppress(ValueError, OSError):
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            if after_name[0] != "Z":
                parents.setdefault(int(after_name[1]), []).append(int(entry.name))
    found = parents.get(pid or os.getpid(), [])
    for each in found:
        found.extend(parents.get(each, []))
    return found


def running(module: str, pid: int | None = None) -> list[int]:
    found = []
    for each in below(pid):
        with suppress(OSError):
            if module.encode() in (_PROC / str(each) / "cmdline").read_bytes().split(b"\0"):
                found.append(each)
    return found


def memory(pid: int) -> int:
    """Return the bytes of memory of a process; of pages that several have, its share; 0 if there is no process."""
    with suppress(OSError, StopIteration):
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return 0


def peak(pid: int) -> int:
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def size(pid: int) -> int:
    with suppress(OSError):
        return resource.getpagesize() * int((_PROC / str(pid) / "statm").read_text().split()[0])
    return 0


def parent(pid: int) -> int:
    return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
