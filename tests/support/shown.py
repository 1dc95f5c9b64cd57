import re
from collections.abc import Sequence
from pathlib import Path

_STEP = re.compile(r"^\$ (.*<<'END'\n(?:.*\n)*?END|.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def steps(page: Path) -> list[tuple[str, list[str]]]:
    """Return each command, with the lines that the page shows of what it prints."""
    blocks = re.findall(r"^```\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [(command, shown.splitlines()) for block in blocks for command, shown in _STEP.findall(block)]


def missing(shown: Sequence[str], printed: str) -> list[str]:
    """Return the lines that were not printed. Numbers and ages may be others, and … stands for anything."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    return [line for line in shown if not any(re.fullmatch(_pattern(line), each) for each in lines)]


def _pattern(line: str) -> str:
    def masked(found: re.Match[str]) -> str:
        return r"\d+" if found[0].isdigit() else ".*"

    return re.sub(r"…|\d+\\ (s|min)\\ ago|(?<!\w)\d+(?!\w)", masked, re.escape(" ".join(line.split())))
