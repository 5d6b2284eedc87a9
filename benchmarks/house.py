"""Print the layout's figures: entries, floors, circles, upward imports, the ways through the house, and its size.

    python -m benchmarks.house [FOLDER_OR_COMMIT ...]     default: this working tree. Several are shown side by side

A unit is an entry of app/ or data_prep/ (a file or a package), or common/ as a whole. A unit's floor is the length of
its longest way down over imports. Imports inside functions count.

The functions in WAYS are traced while a log is prepared, and while a tiny model is trained on native tables and
exported. That takes 30 seconds, and for a commit some minutes more to build its native parts. With --static it is left
out. A way is the calls that one of these functions makes, directly and indirectly. It enters a file if it calls a
function there. A stay is a time in one file: each call from a function to one of another file begins a stay, and so
does each return. Calls between the same two functions count once. "near" counts only what the first file itself calls,
and what is called from there within the same files. "alone" counts only up to where another way begins.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

PROJECT = Path(__file__).parents[1]
TOPS = ("app", "data_prep", "common")
PRODUCT = (*TOPS, "scripts")
DOORS = ("data_prep.prepared", "data_prep.options", "data_prep.encoding")
# The functions whose ways are traced: chapters of the program that are read one at a time. A name may begin with the
# name of the function's file.
WAYS = (
    "prepare",
    "train.run",
    "plan_launch",
    "assemble",
    "HostTablesStep.__call__",
    "measure.measure",
    "write_report",
    "export",
)
# The kinds of syntax nodes that may have a docstring.
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_REFERENCE = re.compile(r"\b([a-z_]+)\.([A-Za-z_]\w+)\b")
_ENDINGS = {
    "cc",
    "csv",
    "gz",
    "h",
    "html",
    "json",
    "jsonl",
    "log",
    "md",
    "mindrecord",
    "parquet",
    "py",
    "sh",
    "svg",
    "tsv",
    "txt",
    "yaml",
}


class House:
    """The Python files of a source tree, and which of them imports which."""

    def __init__(self, root: Path) -> None:
        self.trees: dict[str, ast.Module] = {}
        self.paths: dict[str, Path] = {}
        for path in sorted(path for top in TOPS for path in (root / top).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            self.trees[name] = ast.parse(path.read_text())
            self.paths[name] = path
        self.root = root
        self.imports = {name: set(self._imports(name)) - {name} for name in self.trees}

    def _imports(self, name: str) -> Iterator[str]:
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    if full in self.trees or node.module in self.trees:
                        yield full if full in self.trees else node.module
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.trees)

    def unit(self, module: str) -> str:
        """Return the unit that a module belongs to: an entry of app/ or data_prep/, or common as a whole."""
        parts = module.split(".")
        return parts[0] if parts[0] == "common" or len(parts) == 1 else ".".join(parts[:2])

    def units(self, top: str) -> dict[str, set[str]]:
        """Return, for each unit of `top`, the other units of `top` that it imports."""
        imported: dict[str, set[str]] = {}
        for module, targets in self.imports.items():
            here = self.unit(module)
            if here.startswith(f"{top}."):
                there = {self.unit(target) for target in targets}
                imported.setdefault(here, set()).update(u for u in there if u.startswith(f"{top}.") and u != here)
        return imported

    def entries(self) -> dict[str, int]:
        """Return the number of entries of each folder: files and folders with Python, without __init__.py."""
        children: dict[str, set[Path]] = {}
        for path in self.paths.values():
            if path.name != "__init__.py":
                while path != self.root:
                    children.setdefault(str(path.parent.relative_to(self.root)), set()).add(path)
                    path = path.parent
        return {folder: len(names) for folder, names in children.items() if folder != "."}

    def past_the_doors(self) -> int:
        """Count the imports that break the layering of app, data_prep and common.

        These are imports from app/ into other units of data_prep/ than DOORS, and all from a lower layer into a higher
        one.
        """
        rank = {"common": 0, "data_prep": 1, "app": 2}
        count = 0
        for module, targets in self.imports.items():
            for target in targets:
                here, there = module.split(".")[0], target.split(".")[0]
                count += rank[here] < rank[there] or (
                    (here, there) == ("app", "data_prep") and self.unit(target) not in DOORS
                )
        return count

    def functions(self) -> list[int]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, kinds)]
        return [(node.end_lineno or 0) - node.lineno + 1 for node in nodes]

    def asking_options(self) -> int:
        """Count the files of data_prep, without data_prep/options, that read a field of a preparation's options."""
        count = 0
        for name, tree in self.trees.items():
            objects = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
            names = {getattr(each, "id", getattr(each, "attr", "")) for each in objects}
            is_of_data = name.startswith("data_prep.") and self.unit(name) != "data_prep.options"
            count += is_of_data and not names.isdisjoint({"options", "_options"})
        return count

    def names_twice(self) -> int:
        """Count the file names that more than one file has, except __init__.py and __main__.py."""
        names = Counter(path.name for path in self.paths.values() if not path.name.startswith("__"))
        return sum(count > 1 for count in names.values())


def code_lines(paths: Iterable[Path]) -> int:
    """Count the lines of these Python files that hold code. Blank lines, comments and docstrings do not count."""
    return sum(_code_lines(path.read_text()) for path in paths)


def _code_lines(source: str) -> int:
    occupied: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            occupied.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            occupied.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(occupied)


def repeated_classes(house: House) -> list[str]:
    """Return the names of classes that more than one module defines, each with its modules, as texts."""
    modules: dict[str, list[str]] = {}
    for module, tree in house.trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(module)
    return [f"{name}: {', '.join(found)}" for name, found in sorted(modules.items()) if len(found) > 1]


def stale_references(house: House) -> list[str]:
    """Return the references `module.name` in comments whose module has no member of that name, with their lines.

    The names of dataclass fields are accepted for every module, since settings are written as section.key.
    """
    members: dict[str, set[str]] = {}
    fields: set[str] = set()
    for module, tree in house.trees.items():
        names = members.setdefault(module.rpartition(".")[2], set())
        for node in ast.walk(tree):
            for attribute in ("name", "asname", "id", "attr"):
                names.add(str(getattr(node, attribute, "")).partition(".")[0])
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                fields.add(node.target.id)
    stale = []
    for module, path in house.paths.items():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            found = _REFERENCE.findall(token.string) if token.type == tokenize.COMMENT else []
            for name, member in found:
                if name in members and member not in members[name] | fields | _ENDINGS:
                    stale.append(f"{module}, line {token.start[0]}: {name}.{member}")
    return stale


def sizes(root: Path) -> dict[str, int]:
    """Return the figures that the project's budget limits: lines of code, numbers of settings and command options."""
    sources = {top: sorted((root / top).rglob("*.py")) for top in (*PRODUCT, "tests")}
    commands = (path.read_text() for top in ("app", "data_prep") for path in sources[top])
    settings = (root / "docs" / "configuration.md").read_text().splitlines()
    return {
        "product": sum(code_lines(sources[top]) for top in PRODUCT),
        "tests": code_lines(sources["tests"]),
        "settings": sum(line.startswith("| `") for line in settings),
        "options": sum(text.count("add_argument(") for text in commands),
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes of a graph that can all reach one another."""
    reached = {node: set(targets) for node, targets in graph.items()}
    for middle in graph:
        for there in reached.values():
            if middle in there:
                there |= reached[middle]
    groups = {frozenset(o for o in there if node in reached.get(o, set())) for node, there in reached.items()}
    return [sorted(group) for group in groups if len(group) > 1]


def floors(graph: Mapping[str, set[str]]) -> int:
    """Return the length of the longest path in a graph of imports. Raise CycleError if the graph has a cycle."""
    sorter, count = TopologicalSorter(graph), 0
    sorter.prepare()
    while ground := sorter.get_ready():
        sorter.done(*ground)
        count += 1
    return count


def figures(root: Path) -> dict[str, str]:
    house = House(root)
    entries = house.entries()
    fullest = max((folder for folder in entries if folder not in TOPS), key=lambda folder: entries[folder], default="")
    functions = house.functions()
    return {
        **{f"entries of {top}/": str(entries.get(top, 0)) for top in TOPS},
        "entries of the fullest other folder": f"{entries.get(fullest, 0)} ({fullest})",
        **{f"floors of {top}/": str(floors(house.units(top))) for top in ("app", "data_prep")},
        "circles of files": str(len(circles(house.imports))),
        "circles of packages": str(sum(len(circles(house.units(top))) for top in ("app", "data_prep"))),
        "imports that run up or past the doors": str(house.past_the_doors()),
        "file names that occur twice": str(house.names_twice()),
        "files of data_prep that ask options": str(house.asking_options()),
        **{f"budget: {name}": str(count) for name, count in sizes(root).items()},
        "function: median, 90th percentile": f"{statistics.median(functions):.0f}, {_percentile(functions, 0.9)} lines",
        "Python of the product": _weight(house.paths.values()),
        **{f"Python of {top}/": _weight((root / top).rglob("*.py")) for top in ("tests", "benchmarks")},
        "docs": _weight((root / "docs").rglob("*.md")),
    }


def _weight(paths: Iterable[Path]) -> str:
    lines = [len(path.read_text().splitlines()) for path in paths]
    return f"{sum(lines):,} lines, {len(lines)} files"


class Trace:
    """A profile function that records all calls made below the function of the product called `name`."""

    def __init__(self, root: Path, name: str) -> None:
        self._tops, self._name = tuple(f"{root / top}{os.sep}" for top in TOPS), name
        self._stack: list[CodeType] = []
        # By caller and callee, the fewest changes of file on the way from the first function to the callee.
        self._calls: dict[tuple[CodeType, CodeType], int] = {}
        self._alone: set[str] = set()  # Files that are entered outside of the other ways.

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self._tops):
            return
        if not code.co_filename.endswith(".py"):  # the code of a template
            return
        if event == "return":
            self._stack = self._stack[:-1]
        elif self._stack or _is_called(code, self._name):
            self._stack.append(code)
            if not any(each.co_name == "<module>" for each in self._stack):  # an import calls nothing
                call = (self._stack[max(len(self._stack) - 2, 0)], code)
                changes = sum(one.co_filename != other.co_filename for one, other in pairwise(self._stack))
                self._calls[call] = min(changes, self._calls.get(call, changes))
                if not any(_is_called(each, way) for each in self._stack[1:-1] for way in WAYS):
                    self._alone.add(code.co_filename)

    def figures(self) -> dict[str, str]:
        """Return the numbers of files and stays, for near calls and for all, as texts by name.

        Raise SystemExit if the function was never called.
        """
        if not self._calls:
            raise SystemExit(f"error: {self._name} was not called; build the native parts (make native) and see WAYS")
        counts = {}
        for name, most in ((f"near {self._name}", 1), (f"in all of {self._name}", len(self._calls))):
            calls = [call for call, changes in self._calls.items() if changes <= most]
            files = {callee.co_filename for _, callee in calls}
            stays = 1 + 2 * sum(caller.co_filename != callee.co_filename for caller, callee in calls)
            counts[f"ways {name}"] = f"{len(files)} files, {stays} stays"
        return counts | {f"ways alone {self._name}": f"{len(self._alone)} files"}


def _is_called(code: CodeType, name: str) -> bool:
    if code.co_name != name.rpartition(".")[2]:  # This cheap test already excludes most functions.
        return False
    return name in (code.co_qualname, f"{Path(code.co_filename).stem}.{code.co_qualname}")


def print_ways(root: Path) -> None:
    """Print the figures of the traced functions as JSON.

    They are traced while the program in `root` prepares a log, and trains and exports a tiny model.
    """
    from app.__main__ import main as run_app
    from data_prep.__main__ import main as run_data_prep

    config = str(root / "configs" / "tiny.yaml")
    traces = [Trace(root, name) for name in WAYS]

    def all_traces(frame: FrameType, event: str, argument: object) -> None:
        for trace in traces:
            trace(frame, event, argument)

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
        run_data_prep(["synthesize", "log.txt", "--rows", "3000"])
        sys.setprofile(all_traces)
        run_data_prep(["prepare", "log.txt", "prepared", "--config", config, "prepare.workers=1"])
        run_app(["train", "--config", config, "--dataset", "prepared", "tables.backend=native"])
        run_app(["export", "device_0", "bundle"])
        sys.setprofile(None)
        code = _weight(Path("bundle", "code").rglob("*.py"))
    ways = {name: text for trace in traces for name, text in trace.figures().items()}
    print(json.dumps(ways | {"code of a bundle": code}))


def traced(root: Path) -> dict[str, str]:
    """Run `print_ways` in another process, and return its figures. Raise CalledProcessError if it fails."""
    command = [sys.executable, str(Path(__file__)), "--ways", str(root)]
    environment = {**os.environ, "PYTHONPATH": str(root), "GLOG_v": "3"}
    done = subprocess.run(command, env=environment, cwd=root, check=True, stdout=subprocess.PIPE)
    ways: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return ways


def _percentile(numbers: list[int], share: float) -> int:
    return sorted(numbers)[int(share * (len(numbers) - 1))]


def figures_of(name: str, with_ways: bool) -> dict[str, str]:
    """Return the figures of a folder, or of a commit of this project.

    Raise CalledProcessError if `name` is neither.
    """
    if Path(name).is_dir():
        return figures(Path(name).resolve()) | (traced(Path(name).resolve()) if with_ways else {})
    # Imported here, because traced functions run with the modules of another commit.
    from benchmarks.harness.commands import checked_out

    with checked_out(name, with_native=with_ways) as root:
        return figures(root) | (traced(root) if with_ways else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="FOLDER_OR_COMMIT", default=[str(PROJECT)])
    parser.add_argument("--static", action="store_true", help="without the ways, for which a model is trained")
    parser.add_argument("--ways", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ways:
        return print_ways(options.ways)
    columns = [figures_of(name, not options.static) for name in options.names]
    print(f"{'':44}" + "".join(f"{name[-30:]:>32}" for name in options.names))
    for row in columns[0]:
        print(f"{row:44}" + "".join(f"{column[row]:>32}" for column in columns))


if __name__ == "__main__":
    main()
