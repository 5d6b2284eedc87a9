"""The estimate is a formula of measured costs; it takes them from an earlier run too."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from benchmarks.preparation.scaling import Costs, Size, estimate

COSTS = Costs(
    parallel_count=3e-6,
    main_count=1e-6,
    parallel_encode=2e-6,
    main_encode=2e-6,
    unpack=3e-6,
    main_distinct=1e-6,
    log_bytes=240.0,
    counts_bytes=30.0,
    rows_bytes=220.0,
    output_bytes=200.0,
    lookup_bytes=10.0,
)


@pytest.mark.parametrize(("cores", "first", "second"), [(1, 4.0, 4.0), (2, 2.0, 2.0), (4, 1.0, 2.0), (100, 1.0, 2.0)])
def test_cores_help_until_the_main_process_is_the_slowest(cores, first, second):
    found = estimate(COSTS, Size(1_000_000, 1_000_000, 200_000, False), cores)
    assert (found.first_pass_seconds, found.second_pass_seconds) == pytest.approx((first, second))
    assert found.vocabulary_seconds == pytest.approx(1)
    assert found.seconds == pytest.approx(first + second + 1)


@pytest.mark.parametrize(("cores", "first", "second"), [(1, 7.0, 7.0), (2, 3.5, 3.5), (8, 3.0, 3.0)])
def test_a_thread_of_the_main_process_unpacks(cores, first, second):
    packed = estimate(COSTS, Size(1_000_000, 0, 0, True), cores)
    assert (packed.first_pass_seconds, packed.second_pass_seconds) == pytest.approx((first, second))


def test_sizes_follow_rows_and_values():
    found = estimate(COSTS, Size(1_000_000, 100_000, 20_000, False), 2)
    assert found.output_bytes == 2e8
    assert found.temporary_bytes == 3e7 + 8e5
    assert found.lookup_bytes == 2e5


def test_costs_of_an_earlier_run_are_taken(project, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text("a table\n" + json.dumps({"costs": asdict(COSTS), "real_over_estimate": 1.5}) + "\n")
    words = ["--costs", str(path), "--rows", "1000000", "--distinct", "1000000", "--cores", "2", "--plain"]
    command = [sys.executable, "-m", "benchmarks.preparation.scaling", *words]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["estimate"]["seconds"] == pytest.approx(5)
    assert "more than 2.0 cores make the second pass no faster" in done.stdout
