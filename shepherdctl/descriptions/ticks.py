"""What a loop did in a tick, in words: pure."""

from collections.abc import Iterator, Mapping

from shepherd_core.telemetry import Metric

from shepherdctl.output.formats import span


def did(counts: Mapping[str, float]) -> Iterator[str]:
    """Yield the counts that are not 0, in words, in the order of the metrics."""
    for metric in Metric:
        if count := counts.get(metric.value):
            words = metric.value.removesuffix("_seconds").replace("_", " ")
            yield f"{words} {span(count)}" if metric.unit == "Seconds" else f"{count:g} {words}"
