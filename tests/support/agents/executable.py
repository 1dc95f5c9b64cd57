from pathlib import Path

from shepherd_core.adapters.agent_file import our_agent


def write_agent(path: Path) -> None:
    with our_agent().open() as agent:
        path.write_bytes(agent.read())
    path.chmod(0o755)
