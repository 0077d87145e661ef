"""All sections of a report, in the order of its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dspine.evaluate.results import ACCEPTANCE, DECODED, LAB, PROBE, THROUGHPUT
from dspine.report import ablations, acceptance, decoded, probes, speed
from dspine.report.found import ABLATION, Result
from dspine.report.section import Section

_ORDER: tuple[tuple[str, Callable[[Sequence[Result]], Iterable[Section]]], ...] = (
    (LAB, ablations.labs),
    (ACCEPTANCE, acceptance.sections),
    (THROUGHPUT, speed.sections),
    (ABLATION, ablations.ablations),
    (PROBE, probes.sections),
    (DECODED, decoded.sections),
)


def sections(results: Sequence[Result]) -> list[Section]:
    """The sections of what was found; a kind of results that is not there has none."""
    return [
        section
        for form, make in _ORDER
        if (found := [result for result in results if result.form == form and result.lines])
        for section in make(found)
    ]
