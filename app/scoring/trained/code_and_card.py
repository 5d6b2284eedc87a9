"""Write what a bundle contains beside the model: the modules of this project that scoring needs as one package,
README.md as a model card, and the files that MLflow needs to load and serve the bundle.
"""

from __future__ import annotations

import ast
import functools
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.evaluation.calibration import Calibration
from app.evaluation.metrics import MEASURED, Metrics
from app.scoring.bundle_folder import GOLDEN, BundleManifest
from common.packages import PROJECT
from common.text import printable
from common.yaml_settings import dump_yaml
from data_prep.prepared.schema import Schema

if TYPE_CHECKING:
    from jinja2 import Template

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


Settings = Mapping[str, Any]  # Settings of a run: for each section a mapping of names to plain values.
# Packages that scoring with a bundle needs. The manifest records their versions.
PACKAGES = ("numpy", "pyarrow", "onnxruntime", "xxhash", "isal", "tqdm", "tzdata")
MLFLOW_VERSION = "3.17.0"  # The file MLmodel has the format of this version of MLflow.


@dataclass(frozen=True)
class Evaluated:
    """Metrics of two sets of scores for the rows of one split: the scores of the bundle, and those that the training
    code computes with the same checkpoint.
    """

    split: str
    metrics: Metrics
    intervals: dict[str, tuple[float, float]]
    trained: Metrics  # Metrics of the scores that the training code computes for the rows of the split.
    # Largest absolute difference between the bundle's logit of a row and the training code's logit of that row. The
    # training code uses float32 rows.
    largest_difference: float


def texts(
    manifest: BundleManifest, settings: Settings, schema: Schema, evaluated: Evaluated | None, table_bytes: int
) -> dict[str, str]:
    """Return the contents of the bundle's text files, by file name.

    `settings` are the settings of the training run. `table_bytes` is the size of the bundle's table file in bytes.
    `evaluated` is None if no rows were measured.
    """
    versions = manifest.versions
    flavor = {
        "loader_module": f"{CODE_PACKAGE}.app.scoring.predictor",
        "code": CODE,
        "python_version": versions["python"],
        "env": {"virtualenv": "python_env.yaml"},
    }
    return {
        "requirements.txt": requirements(versions),
        "python_env.yaml": dump_yaml({"python": versions["python"], "dependencies": ["-r requirements.txt"]}),
        "MLmodel": dump_yaml({"flavors": {"python_function": flavor}, "mlflow_version": MLFLOW_VERSION}),
        "README.md": _card(manifest, settings, schema, evaluated, table_bytes),
    }


def requirements(versions: Mapping[str, str]) -> str:
    """Return the content of requirements.txt, which pins the packages of scoring to `versions`, except NumPy.

    MindSpore needs NumPy 1, so the environment of the export has it. Scoring works with NumPy 2 too.
    """
    pins = {name: f"=={versions[name]}" for name in PACKAGES} | {"numpy": ">=1.26.4,<3"}
    return "".join(f"{name}{pin}\n" for name, pin in pins.items())


def _card(
    manifest: BundleManifest, settings: Settings, schema: Schema, evaluated: Evaluated | None, table_bytes: int
) -> str:
    sections = dump_yaml({**settings, "prepare": schema.options}).rstrip()
    calibration = manifest.model.get("calibration")
    return _card_template().render(
        asdict(manifest),
        schema=schema,
        settings=sections,
        # The fence of the Markdown code block must be longer than any run of backticks inside the block.
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", sections)), default=0)),
        evaluated=evaluated,
        measured=MEASURED,
        undefined_interval=(float("nan"), float("nan")),
        table_bytes=table_bytes,
        is_delta=manifest.parent is not None,
        calibration=Calibration(**calibration) if calibration else None,
        code=CODE,
        package=CODE_PACKAGE,
        golden=GOLDEN,
    )


@functools.cache  # An online trainer writes a card after each file of its log.
def _card_template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    # The card is Markdown, not HTML: the filter `escaped` keeps names from being markup.
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)  # noqa: S701
    environment.filters |= {"escaped": _escaped, "grouped": "{:,}".format}
    return environment.get_template("card.md.jinja")


def _escaped(name: str) -> str:
    """Return a name from a log as text in Markdown, without any markup that it may contain."""
    return re.sub(r"[^\w ./-]", lambda match: f"&#{ord(match[0])};", printable(name))
