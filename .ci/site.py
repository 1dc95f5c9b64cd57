"""
Gather the pages of the site in build/pages: docs/, the pages beside it, and those of the examples.

    .venv-site/bin/python .ci/site.py

Each page keeps its path, which messages of `shepherdctl` name; a README becomes the first page of its folder. The site
has no code, so a link to code becomes its text. An example's page ends with its files.
"""

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "pages"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def place(page: Path) -> Path:
    """Return where a file of the repository is in the site, relative to its first page."""
    relative = page.relative_to(ROOT)
    return relative.with_name("index.md") if relative.name == "README.md" else relative


def gathered(page: Path, pages: frozenset[Path]) -> str:
    """Return the text of a page with links that lead to where its targets are in the site."""

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], (page.parent / match[2]).resolve(), match[3] or ""
        target = target / "README.md" if target.is_dir() else target
        if target not in pages:
            return text
        return f"[{text}]({os.path.relpath(place(target), place(page).parent)}{anchor})"

    return LINK.sub(link, page.read_text(encoding="utf-8"))


def files(page: Path) -> str:
    """Return the files beside an example's page, each below its name."""
    return "".join(
        f"\n## {file.name}\n\n```{file.suffix[1:]}\n{file.read_text(encoding='utf-8')}```\n"
        for file in sorted(page.parent.glob("*.[tj]*"), reverse=True)
        if page.parent.parent == ROOT / "examples"
    )


def main() -> None:
    """Write the pages, and the pictures beside them."""
    pages = frozenset([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "pictures", OUT / "docs" / "pictures")
    for page in pages:
        file = OUT / place(page)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(gathered(page, pages) + files(page), encoding="utf-8")


main()
