"""The folder that is made: beside its name until it is complete; nothing but prepared data is ever replaced."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_prep.schema import SCHEMA_FILE

REJECTS_FILE = "rejects.tsv"
WORK_FOLDER = "work"  # in the folder while it is made: counts, tables and results under way


@contextmanager
def new_folder(output: Path, overwrite: bool) -> Iterator[Path]:
    """A folder beside `output` that takes its name at the end, or vanishes on an error."""
    _check_output(output, overwrite)
    partial = output.with_name(output.name + ".partial")
    _remove(partial)  # of a run that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        _remove(partial)
        raise
    replaced = output.with_name(output.name + ".replaced")
    if output.exists():
        _remove(replaced)
        output.rename(replaced)
    partial.rename(output)
    _remove(replaced)


def _check_output(output: Path, overwrite: bool) -> None:
    """Nothing but a prepared folder is ever replaced, and that only when it is asked for."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / SCHEMA_FILE).is_file():
        raise FileExistsError(f"{output} is there and is not a prepared folder; give another output")
    if not overwrite:
        raise FileExistsError(f"{output} holds prepared data; replace it with --overwrite or give another output")


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
