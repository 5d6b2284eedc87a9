"""docs/configuration.md is current, and has a sentence for each setting."""

import re

from scripts.configuration_docs import markdown


def test_the_page_is_current(project):
    assert (project / "docs" / "configuration.md").read_text() == markdown(), "run: make docs"


def test_each_setting_has_its_type_and_a_sentence():
    lines = markdown().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| `") and line.count(" | ") >= 4]
    assert len(rows) > 100
    assert [row[0] for row in rows if not row[1] or not re.match(r"\S.+\.", row[4].rstrip("| "))] == []


def test_a_range_is_that_of_the_section_s_own_check():
    page = markdown()
    assert "| `model.dropout` | number | `0.0` | in [0, 1) |" in page
    assert "adamw: `1e-08` | 1.2e-38 or more, float32's least normal number |" in page


def test_settings_of_several_optimizers_have_one_row_with_their_defaults():
    rows = [line for line in markdown().splitlines() if line.startswith("| `GROUP_optimizer.learning_rate`")]
    assert len(rows) == 1
    assert "| ftrl: `0.05`<br>adagrad, rowwise_adagrad: `0.01`<br>sgd: `0.1`<br>" in rows[0]
