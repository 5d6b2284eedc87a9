"""Text that benchmarks write into their pages."""

import datetime

import pytest

from benchmarks import __main__ as runner
from benchmarks.harness import results
from benchmarks.harness.results import BEST_FORM, TARGETS, Target, replace_section, section, summary

MACHINE = {"processor": "Some CPU", "cores": 2, "python": "3.11.7", "commit": "abc123"}


def by_name(what):
    return next(target for target in TARGETS if target.what == what)


def measured(what, found):
    target = by_name(what)
    return target.find(found, *target.keys)


def step_results(form, precision, **over_native):
    steps = {name: {"over_native": ratio} for name, ratio in {"native": 1.0, **over_native}.items()}
    return {"train_step": {"groups": [{"form": form, "workload": {"precision": precision}, "steps": steps}]}}


@pytest.mark.parametrize(
    ("target", "measured", "reached"), [("≥ 2", 2.0, "yes"), ("≥ 2", 1.99, "**no**"), ("≤ 2", 2.01, "**no**")]
)
def test_a_target_is_reached_at_its_bound(target, measured, reached):
    assert Target("x", target, lambda _: measured).row({})[3] == reached


def test_what_was_not_measured_is_named_as_such():
    table = summary({}).splitlines()
    assert len(table) == 2 + len(TARGETS)
    assert all("| not measured |" in line for line in table[2:])


def test_a_step_ratio_is_that_of_its_own_group():
    found = step_results(BEST_FORM, "bfloat16", pytorch=1.25)
    assert by_name("step bf16, best form: × PyTorch autocast").row(found)[2:] == ("1.25", "yes")
    assert by_name("step float32, best form: × PyTorch").row(found)[2] == "not measured"
    assert by_name("step bf16, as users find it: × PyTorch autocast").row(found)[2] == "not measured"


def test_growth_compares_the_largest_with_the_usual_size():
    vocabularies = [{"name": "V 100,000", "seconds": 0.02}, {"name": "V 100,000,000", "seconds": 0.03}]
    batches = [
        {"batch": size, "microseconds_per_row": time} for size, time in ((256, 9.0), (16_000, 2.0), (65_536, 2.1))
    ]
    found = {"growth": {"vocabularies": vocabularies, "batches": batches}}
    assert measured("growth, tables: time at V = 10⁸ over 10⁵", found) == pytest.approx(1.5)
    assert measured("growth, batch: time a row at 65,536 over 16,000", found) == pytest.approx(1.05)


def test_a_section_is_replaced_and_all_else_stays():
    text = replace_section("# Results\n\nby hand\n", "a", "Title", "old")
    text = replace_section(text, "b", "Other", "kept") + "more by hand\n"
    assert replace_section(text, "a", "ignored", "new") == text.replace("old", "new")
    assert text.startswith("# Results\n\nby hand\n\n## Title\n\n<!-- begin a -->\nold\n<!-- end a -->\n")


@pytest.mark.parametrize("text", ["<!-- begin a -->\nx\n", "x\n<!-- end a -->\n", "<!-- end a -->\n<!-- begin a -->\n"])
def test_broken_markers_are_an_error_that_names_them(text):
    with pytest.raises(ValueError, match=r"<!-- begin a -->.*put them back"):
        replace_section(text, "a", "Title", "new")


def test_a_run_of_one_benchmark_leaves_the_figures_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SUMMARY", tmp_path / "summary.md")
    monkeypatch.setattr(runner, "PAGES", tmp_path)
    kernels = {"machine": MACHINE, "kernels": {"ratios": {"ftrl faster than stock": 5.0}}}
    growth = {"machine": MACHINE, "batches": [{"batch": size, "microseconds_per_row": 1} for size in (16_000, 65_536)]}
    runner.keep("kernels", runner.BENCHMARKS["kernels"], "kernel times", kernels)
    runner.keep("growth", runner.BENCHMARKS["growth"], "growing times", growth)
    text = (tmp_path / "training.md").read_text() + (tmp_path / "summary.md").read_text()
    for line in (
        "kernel times",
        "growing times",
        "`python -m benchmarks.training.kernels --growth`",
        "| ≥ 4 | 5.00 | yes |",
    ):
        assert line in text
    assert results.read_results(tmp_path / "results.json") == {"kernels": kernels, "growth": growth}


def test_a_section_names_what_its_figures_depend_on():
    text = section("python -m x", "line 1\n", {"machine": MACHINE}, datetime.date(2026, 1, 2))
    for part in ("`python -m x`", "2026-01-02", "abc123", "Some CPU, 2 cores", "numpy ", "```text\nline 1\n```"):
        assert part in text


def test_a_part_of_the_cuts_is_no_measurement_of_the_real_rows():
    from benchmarks.harness.results import auc_above

    found = {
        "real_rows": {
            "arguments": {"cuts": [5, 6]},
            "above": {"peer": {"mean": 0.001, "clusters_interval": (-0.002, 0.003)}},
        }
    }
    with pytest.raises(KeyError, match="not all cuts"):
        auc_above(found, "peer")
    found["real_rows"]["arguments"]["cuts"] = [5, 6, 7, 8, 9]
    assert auc_above(found, "peer") == 0.001
    assert auc_above(found, "peer", lower_end=True) == -0.002


def test_auto_is_compared_with_the_better_recipe_by_the_mean_of_its_seeds():
    from benchmarks.harness.results import auto_below

    def entry(data, recipe, *aucs):
        runs = [{"test": {name: {"auc": auc} for name in ("all", "seen often")}} for auc in aucs]
        return {"data": data, "recipe": recipe, "runs": runs, "best possible": {"seen often": {"auc": 0.81}}}

    entries = [entry("5m", "auto", 0.80, 0.78), entry("5m", "many_rows", 0.795), entry("5m", "few_rows", 0.76)]
    found = {"auto_5m": {"results": entries}}
    assert auto_below(found, "auto_5m", "5m") == pytest.approx(0.005)
    assert measured("5 M synthetic rows, seen often, auto: AUC below the best possible", found) == pytest.approx(0.01)
    with pytest.raises(KeyError, match="many_rows on 500k"):
        auto_below(found, "auto_5m", "500k")


def test_the_synthetic_targets_compare_with_regression_and_truth():
    def figures(auc, log_loss):
        return {name: {"auc": auc, "log_loss": log_loss} for name in ("all", "seen often")}

    entry = {
        "data": "5m",
        "recipe": "many_rows",
        "runs": [{"test": figures(0.79, 0.46)}],
        "logistic regression": figures(0.78, 0.47),
        "best possible": figures(0.81, 0.44),
    }
    found = {"recipes": {"results": [{"data": "500k", "recipe": "many_rows"}, entry]}}
    expected = {
        ": AUC above logistic regression's": 0.01,
        ", seen often: AUC below the best possible": 0.02,
        ", seen often: log loss above the best": 0.02,
    }
    for what, value in expected.items():
        assert measured(f"5 M synthetic rows{what}", found) == pytest.approx(value)
