import pytest

from common.text import did_you_mean, natural_order, shortened


def test_the_natural_order_counts_numbers_as_numbers():
    names = ["²", "b", "a10b2", "a9", "a10b10", "a"]  # ² is a digit to Python, but no number
    assert sorted(names, key=natural_order) == ["a", "a9", "a10b2", "a10b10", "b", "²"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acu", "did you mean 'auc'?"),
        ("colour", "known here: auc, log_loss"),
    ],
)
def test_an_unknown_name_is_answered_by_the_nearest_or_all(name, said):
    assert did_you_mean(name, ["auc", "log_loss"]) == said


def test_a_long_list_is_shortened():
    assert shortened(["a", "b", "c"], 3) == "a, b, c"
    assert shortened(["a", "b", "c"], 2, between="; ") == "a; b and 1 more"
