"""Draw the curves of a JSON file of the bench, each as a PNG beside it. Runs in .venv-bench, which has matplotlib."""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def main(file: Path) -> None:
    """Draw all curves."""
    record = json.loads(file.read_text(encoding="utf-8"))
    for curve in record["curves"]:
        figure, axes = plt.subplots(figsize=(7, 4.5))
        for name, points in sorted(curve["lines"].items()):
            drawn = [(x, y) for x, y in points if y]
            axes.loglog([x for x, _ in drawn], [y for _, y in drawn], marker="o", label=name)
        axes.set_title(f"{curve['title']}\n{record['at'][:10]}", fontsize=10)
        axes.set_xlabel(curve["x"])
        axes.set_ylabel(curve["y"])
        axes.grid(visible=True, which="major", alpha=0.4)
        axes.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(file.with_name(f"{curve['name']}.png"), dpi=110, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
