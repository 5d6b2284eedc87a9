"""Benchmarks in their short form, and that docs/results.md can take what they print."""

import datetime

import pytest

from benchmarks.__main__ import BENCHMARKS, run
from benchmarks.harness.results import section


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recompute", "tower_memory"])
def test_a_short_trial_ends_with_what_the_results_keep(name):
    benchmark = BENCHMARKS[name]
    printout, result = run(benchmark.module, benchmark.quick)
    text = section(f"python -m {benchmark.module}", printout, result, datetime.date(2026, 1, 1))
    assert result["machine"]["commit"] in text and printout.strip() in text
    assert result["results"]
