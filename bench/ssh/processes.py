"""The cost of this process together with the processes that talk to machines."""

import os
import resource
import time

import psutil

_FORK_SERVER = "shepherd_core.adapters.ssh.fork_server"


def processor_seconds() -> float:
    """Return the processor time used so far, when the processes of closed connections have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for fork_server in _fork_servers():
        while fork_server.children():
            time.sleep(0.001)
        used += sum(fork_server.cpu_times()[:4])
    return used


def _fork_servers() -> list[psutil.Process]:
    children = psutil.Process(os.getpid()).children()
    return [child for child in children if _FORK_SERVER in child.cmdline()]
