"""The commands of README and docs run as they stand there, in a copy of the project, or are listed with the reason."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks.accuracy import crossed_lists

ROOT = Path(__file__).resolve().parents[1]
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:make|bash|curl|tail|mpirun|mlflow|ExecStart=\S+|\S*python[.\d]*) ")
PAGES = (  # in the order in which they are run: later ones use what earlier ones made
    "README.md",
    "docs/data_format.md",
    "docs/training.md",
    "docs/run_folder.md",
    "docs/scoring.md",
    "docs/serving.md",
    "docs/recipes.md",
    "docs/online.md",
    "docs/internals/scaling.md",
)
COPIED = ("app", "benchmarks", "common", "configs", "data_prep", "docs", "examples", "scripts")
FILES = ("Makefile", "pyproject.toml", "requirements.lock")
CHECKPOINT = "$(ls -d device_0/checkpoints/step-* | tail -n 1)"
# Words in capitals stand for the reader's files, and are replaced in this order; what is optional is left out.
WORDS = {
    r"/mnt/ssd": "demo",
    r" \[(?!\{)[^]]*\]| …$": "",
    r"RUN\|CHECKPOINT BUNDLE": "device_0 another rows=int8 --calibrate auto",
    r"RUN\|CHECKPOINT": "device_0",
    r"device_0/checkpoints/step-\d+|(?<= )CHECKPOINT(?!=)": CHECKPOINT,
    r" FOLDER --shards": " resharded --shards",
    r"DELTA BUNDLE": "delta folded",
    r"DELTA": "delta",
    r"PARENT|BUNDLE": "bundle",
    r"effects bundle INPUT": "effects bundle new.txt day2.txt --output effects.csv --rows 2000 --values 20",
    r"predict bundle INPUT OUTPUT$": "predict bundle new.txt day2.txt scores.parquet --keep C9 --workers 2",
    r"bundle INPUT OUTPUT": "bundle new.txt mpi.csv",
    r"INPUT OUTPUT --vocabulary DIR": "day2.txt other --vocabulary again",
    r"INPUT OUTPUT": "new.txt again",
    r"(OUTPUT|PREPARED|FOLDER)(?!=)": "again",
    r"LOG --rows N": "made.txt --rows 1000",
    r"LOG": "log.csv",
}
A_FORM = "the form of a command that is run elsewhere"
A_BENCHMARK = "a benchmark: minutes to hours"
MINUTES = "takes minutes; tests/ranks trains over several ranks"
A_PACKAGE = "needs a package that the project does not install"
IN_LIFE = "run by tests/app/serving/test_life.py"
NOT_RUN = {
    r"make (test|test-long|lint|setup|bench|docs|doctor)": "what CI runs, or who changes the project",
    r"python -m scripts.licences > docs/licences.md": "who changes requirements.lock",
    r"make demo( && make export)?": "run before the first page",
    r"make online-demo": "run by tests/examples/test_online_demo.py",
    r"make online .*": A_FORM,
    r"make doors?.*|bash examples/doors/.*|([A-Z_]+=\S+ )*(\.venv(-doors/\w+)?/bin/.*|mlflow .*)": "run by make doors",
    r".*python -m benchmarks.*|make (rehearsal|matrix).*": A_BENCHMARK,
    r"python -m (data_prep prepare|app checkpoint verify|app evaluate --ranks 4|app sweep)": A_FORM,
    r"bash scripts/run_auto_parallel_train.sh RANK_SIZE .*": A_FORM,
    r"curl --http2": A_FORM,
    r"ExecStart=.*": "a line of a systemd unit, whose command is run elsewhere",
    r"(HOSTFILE=hosts )?bash scripts/run_\w+.sh (2 )?4 15 prepared.*": MINUTES,
    r"python3.11 -m venv scoring .*|scoring/bin/python .*": A_PACKAGE,
    r"(mlflow|curl localhost:5000).*": A_PACKAGE,
    r"python -m app (serve (models|FOLDER)|export device_0 models/).*": IN_LIFE,
    r"curl localhost:8000/v1/(status|pin|rollback|unpin).*": IN_LIFE,
    r"python -m app online parts \w+\.\w+=.*": "other settings, which the same folder refuses",
    r"python -m app online release PART": "needs a part that is held aside; tests/app/online makes one",
    r"bash run_with_mpi.sh|python net.py|bash run.sh \d .*": "run by tests/examples",
    r".*--target Ascend": "needs the device",
    r"make native CXX=aarch64-linux-gnu-g\+\+ .*": "needs a library of MindSpore's package for Arm",
}
# What must be there before a page's first command, besides what the pages before it left.
STAGE = {
    "docs/scoring.md": ("rm -r bundle scores.csv",),
    "docs/recipes.md": ("cp taste.csv log.csv", "sed -i 's/rungs: .*/rungs: [1, 2]/' rates.yaml"),
    "docs/online.md": (
        "python -m data_prep synthesize drifting --rows 40000 --drift 8000 --part-rows 8000",
        "mkdir parts && mv drifting/part-0000[34]* parts",
        "python -m data_prep prepare drifting drifting.prepared --data configs/data/drift.yaml",
        "python -m app train --config configs/auto.yaml --dataset drifting.prepared train.epochs=1",
    ),
}
# Commands that do not end, and what they have printed once they do what they are for.
ENDLESS = {
    r"(app |cli\.|make )serve": r"http://\S+:(\d+) serves ",
    r"app online (?!status|release|.*--once)": "the tower runs",
}


def documented(page: Path, sentences: bool = True) -> list[str]:
    """Return the commands of a page's blocks, and of its `sentences`, without what stands behind them."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    found: list[str] = []
    for block, line, inline in re.findall(r"(?ms)^```\w*\n(.*?)^```|^ {4}(\S[^\n]*)|`([^`\n]+)`", text):
        lines = block.splitlines() or [line or (inline if sentences else "")]
        found += [re.sub(r" +#.*| {8,}.*", "", line).strip() for line in lines if COMMAND.match(line)]
    return list(dict.fromkeys(found))


def is_run(command: str) -> bool:
    return not any(re.fullmatch(pattern, command) for pattern in NOT_RUN)


def commands_of(page: str) -> list[str]:
    """Return what is run for a page: what it has in a block, and what it is the first to name if no page has."""
    in_blocks = {command: page for page in reversed(PAGES) for command in documented(ROOT / page, sentences=False)}
    named = {command: page for page in reversed(PAGES) for command in documented(ROOT / page)}
    return [command for command in documented(ROOT / page) if is_run(command) and (named | in_blocks)[command] == page]


def with_files(command: str) -> str:
    for pattern, value in WORDS.items():
        command = re.sub(pattern, value, command)
    return command


class Project:
    """A copy of the project, with a reader's files, in which the commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._number, self._endless, self._port = folder, 0, [], "8000"
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name)
        for name in FILES:
            shutil.copy2(ROOT / name, folder / name)
        (folder / ".venv").symlink_to(sys.prefix)
        as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
        cores = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        values = {"DEMO_ROWS": "60000", "PORT": "0", "PYTHONPATH": str(folder)}
        path = {"PATH": f"{folder / '.venv/bin'}:{os.environ['PATH']}"}
        self._environment = {**os.environ, **as_root, **cores, **values, **path}

    def write_logs(self) -> None:
        """Write the logs that the docs name, and the description of one, and the sweep of recipes.md."""
        for name, rows, seed in (("train.txt", 30_000, 3), ("new.txt", 2_000, 4), ("day2.txt", 20_000, 5)):
            self.run(f"python -m data_prep synthesize {name} --rows {rows} --seed {seed}")
        (self.folder / "data").mkdir()
        with tarfile.open(self.folder / "data" / "dac.tar.gz", "w:gz") as archive:
            archive.add(self.folder / "train.txt", "train.txt")
        taste = crossed_lists.write_log(self.folder, 3000, 1).rename(self.folder / "taste.csv")
        crossed_lists.describe(self.folder, "mean").rename(self.folder / "log.yaml")
        (self.folder / "log.csv").write_text("clicked,user,genres\n" + taste.read_text())
        (sweep,) = re.findall(r"(?ms)^```yaml\n(# rates.yaml\n.*?)^```", (ROOT / "docs/recipes.md").read_text())
        (self.folder / "rates.yaml").write_text(sweep)

    def run(self, command: str) -> None:
        """Run a command to its end, or until it does what it is for."""
        begin, self._number = time.monotonic(), self._number + 1
        log, line = (
            self.folder / f"output-{self._number}.log",
            command.replace("localhost:8000", f"localhost:{self._port}"),
        )
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until = next((until for word, until in ENDLESS.items() if re.search(word, command)), None)
        self._endless += [process] if until else []
        while until is None or not (found := re.search(until, log.read_text(), re.MULTILINE)):
            if until is None and process.poll() == 0:
                break
            assert process.poll() is None and time.monotonic() < begin + 300, f"{command}\n{log.read_text()[-4000:]}"
            time.sleep(0.02)
        else:
            self._port = found[1] if found.groups() else self._port
        print(f"{time.monotonic() - begin:5.1f} s  {command}", flush=True)

    def end(self) -> None:
        """End what does not end by itself, as Ctrl-C does."""
        for process in self._endless:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(60)
        self._endless = []


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("a reader's project"))
    project.write_logs()
    project.run("make demo")
    yield project
    project.end()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_run(copy, page):
    try:
        for command in (*STAGE.get(page, ()), *map(with_files, commands_of(page))):
            copy.run(command)
    finally:
        copy.end()


def test_lists_name_what_is_documented():
    """Every page's command is run or has a reason, and no word or reason is left over."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")]
    rest = [page for page in pages if str(page.relative_to(ROOT)) not in PAGES]
    assert [command for page in rest for command in documented(page) if is_run(command)] == []
    found = [command for page in pages for command in documented(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.fullmatch(pattern, command) for command in found)] == []
    for pattern, value in WORDS.items():
        before, found = found, [re.sub(pattern, value, command) for command in found]
        assert before != found, f"no command has {pattern}"
