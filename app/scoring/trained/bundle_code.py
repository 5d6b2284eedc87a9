"""Collect the modules of this project that scoring needs, and write them into a bundle as one package."""

from __future__ import annotations

import ast
import functools
import re
import shutil
from pathlib import Path

from common.packages import PROJECT

CODE = "code"
# Package in a bundle's code/ that contains all its modules. Without it, `app` and `common` on the import path would
# hide modules of the same name in a user's project.
CODE_PACKAGE = "wide_deep_bundle"
_OWN_IMPORT = re.compile(r"^( *(?:from|import) )((?:app|data_prep|common)[. ])", re.MULTILINE)
# Pattern of a whole import statement of a module of this project. It may have several lines in parentheses.
_OWN_STATEMENT = re.compile(rf"{_OWN_IMPORT.pattern}(?:[^(\n]*\([^)]*\)|.*)", re.MULTILINE)
# Pattern of `if TYPE_CHECKING:` with the indented and empty lines below it.
_TYPES_ONLY = re.compile(r"^( *)if TYPE_CHECKING:.*\n(?:(?:\1 +.*)?\n)*", re.MULTILINE)
# A bundle contains copies of these modules and of all modules of the project that they import.
CODE_ROOTS = (
    "app.cli.predict",
    "app.cli.bundle",
    # The readers of log formats are listed here because they are imported dynamically, by the names in
    # data_prep/raw_log/formats.py, where `code_files` cannot find them.
    *(f"data_prep.raw_log.{path.stem}" for path in sorted((PROJECT / "data_prep/raw_log").glob("[!_]*.py"))),
)
NATIVE = "data_prep/kernels/csrc/log_kernels.h", "data_prep/kernels/csrc/build/liblog_kernels.so"


def write_code(folder: Path) -> None:
    """Copy the modules that scoring needs into `folder` as the package CODE_PACKAGE. In the copies, imports of this
    project's modules get the package's name as a prefix. Copy the native encoder's library as well if it is built.
    """
    package = folder / CODE_PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Code that scores by the bundle which it is in."""\n', encoding="utf-8")
    for path in code_files(CODE_ROOTS):
        target = package / path.relative_to(PROJECT)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = _OWN_IMPORT.sub(rf"\1{CODE_PACKAGE}.\2", path.read_text(encoding="utf-8"))
        target.write_text(text, encoding="utf-8")
    for file in NATIVE:
        if (PROJECT / file).is_file():
            (package / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / file, package / file)


# Cache the result, because an online trainer writes a bundle, and so calls this function, after each file of its log.
@functools.cache
def code_files(roots: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the files of the modules `roots` and of all modules of the project that they import, directly or
    indirectly.

    Imports inside functions count, too. Imports under `if TYPE_CHECKING:` do not count, because they never run. An
    `__init__.py` that contains nothing but a docstring is left out, because Python can import a package without it.
    """
    has_code: dict[Path, bool] = {}
    names = list(roots)
    while names:
        module = names.pop()
        path = _module_path(module)
        if path is None or path in has_code:
            continue
        text = _TYPES_ONLY.sub("", path.read_text(encoding="utf-8"))
        has_code[path] = path.stem != "__init__" or len(ast.parse(text).body) > 1
        # Find the import statements by a pattern and parse only these, because parsing whole modules takes ten times as
        # long.
        for found in _OWN_STATEMENT.finditer(text):
            (node,) = ast.parse(found[0].strip()).body
            if isinstance(node, ast.ImportFrom):
                names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
    return tuple(sorted(path for path in has_code if has_code[path]))


def _module_path(module: str) -> Path | None:
    """Return the file of the module or package with a dotted name, or None if it is not one of this project's."""
    if module.split(".")[0] not in ("app", "data_prep", "common"):
        return None
    path = PROJECT.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)
