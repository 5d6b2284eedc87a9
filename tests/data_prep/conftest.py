"""Fixtures for tests of the preparation: a small log in Criteo's format, and a folder prepared from it."""

import random

import pytest

from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare


def make_line(label="1", integer="5", value="0123abcd"):
    return "\t".join([label] + [integer] * 13 + [value] * 26)


def make_log(num_rows, seed=1):
    """Return the text of a random log of `num_rows` lines. Categorical columns have a few frequent and many rare
    values, and some cells of all columns but the label are missing.
    """
    random_ = random.Random(seed)

    def integer():
        return random_.choice(["", "0", "-1", "7", str(random_.randrange(1_000_000))])

    def value():
        rank = int(random_.paretovariate(0.7))
        return random_.choice(["", f"{rank * 2654435761 % 2**32:08x}", f"{rank % 5:08x}"])

    lines = []
    for _ in range(num_rows):
        cells = [str(int(random_.random() < 0.3)), *(integer() for _ in range(13)), *(value() for _ in range(26))]
        lines.append("\t".join(cells) + "\n")
    return "".join(lines)


@pytest.fixture(scope="session", name="make_line")
def make_line_fixture():
    return make_line


@pytest.fixture(scope="session", name="make_log")
def make_log_fixture():
    return make_log


@pytest.fixture(scope="session")
def small_options():
    """Return options of `prepare` with small windows for shuffling, so that even a log of some thousand rows has
    several.
    """
    return PrepareOptions(min_count=3, shuffle_window_rows=500, workers=1)


@pytest.fixture(scope="session")
def log_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "train.txt"
    path.write_text(make_log(3_000))
    return path


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, log_path, small_options):
    """Return a folder prepared from `log_path`. Tests must not change it."""
    folder = tmp_path_factory.mktemp("prepared") / "small"
    prepare(log_path, folder, small_options)
    return folder
