"""`python -m app checkpoint`: list, verify and convert checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from app.checkpoint.manifest import read_manifest
from app.checkpoint.read import Checkpoint, row_layout
from app.checkpoint.retention import compact, open_named, rewrite, step_folders
from app.checkpoint.write import ROW_IDS, step_name
from app.run.folder import best_of_run, named_or_best, run_checkpoints
from app.run.identity import check_same_inputs
from app.tables.interface import DEEP, STATE_ARRAYS
from app.tables.optimizers import ROWS
from common.arguments import add_shared
from common.arrays.format import read_entries
from common.console import progress_bar
from common.files import LOCK_FILE, lock_folder
from common.text import show


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `checkpoint` with its actions (list, show, verify, reshard, compact, export-rows) to `python -m
    app`.
    """
    parser = commands.add_parser("checkpoint", help="list, check and convert checkpoints")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    action = actions.add_parser("list", help="print a line for each checkpoint, and mark the one that `evaluate` uses")
    action.add_argument("place", type=Path, nargs="?", metavar="RUN", help="run folder (the one of --run)")
    add_shared(action, "--run")
    action.add_argument("--folder", type=Path, metavar="DIR", help="folder of checkpoints (the one of the run)")
    action.set_defaults(command=_list)

    action = _with_checkpoint(actions, "show", "describe a checkpoint", "?")
    action.set_defaults(command=_show)
    action = _with_checkpoint(actions, "verify", "read every byte and compare with the checksums", "?")
    action.set_defaults(command=_verify)

    action = _with_checkpoint(actions, "reshard", "write a checkpoint with another number of files per table")
    action.add_argument("folder", type=Path, metavar="FOLDER", help="folder in which step-<number>/ is created")
    action.add_argument("--shards", type=int, required=True, metavar="N", help="files per table")
    action.set_defaults(command=_reshard)

    action = _with_checkpoint(actions, "compact", "turn a delta into a full checkpoint, in place")
    action.set_defaults(command=_compact)

    action = _with_checkpoint(actions, "export-rows", "write (field, value, row, vector) to Parquet")
    action.add_argument("output", type=Path, metavar="FILE", help="the Parquet file")
    action.add_argument("--table", choices=tuple(STATE_ARRAYS), default=DEEP, help="table to export (deep)")
    add_shared(action, "--dataset")
    action.set_defaults(command=_export_rows)


def _with_checkpoint(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    number: Literal["?"] | None = None,
) -> argparse.ArgumentParser:
    """Add an action (subcommand) that takes a checkpoint as argument, and return its parser. If `number` is "?", the
    argument is optional, and the default is the best checkpoint of --run.
    """
    action = actions.add_parser(name, help=summary)
    which = (
        "folder step-<number>, or a run folder for its best (the one of --run)" if number else "folder step-<number>"
    )
    action.add_argument("checkpoint", type=Path, nargs=number, metavar="CHECKPOINT", help=which)
    if number:
        add_shared(action, "--run")
    return action


def _list(arguments: argparse.Namespace) -> None:
    run = arguments.place or arguments.run
    folder = arguments.folder or run_checkpoints(run)
    paths = step_folders(folder)
    if not paths:
        raise FileNotFoundError(f"no checkpoint in {folder}")
    best = None
    if not arguments.folder:
        with suppress(FileNotFoundError):  # A FileNotFoundError means that the run has no complete checkpoint.
            best = best_of_run(run).path
    for path in paths:
        show(f"{path.name}  {_one_line(path)}{'  <- evaluate takes this one' if path == best else ''}")


def _one_line(path: Path) -> str:
    try:
        checkpoint = Checkpoint.open(path)
        checkpoint.verify(sizes_only=True)
    except (FileNotFoundError, ValueError) as error:
        return f"not whole: {error}"
    manifest = checkpoint.manifest
    auc = f"{manifest.metrics['auc']:.6f}" if "auc" in manifest.metrics else "-"
    shards = max(manifest.shards.values(), default=0)
    kind = f"changes since step {manifest.parent['step']}" if manifest.parent else "full"
    return (
        f"epoch {manifest.position.last_epoch:>3}  {manifest.size_bytes / 2**20:>10,.1f} MiB  "
        f"{shards:>3} files a table  AUC {auc}  {kind}"
    )


def _show(arguments: argparse.Namespace) -> None:
    checkpoint = named_or_best(arguments.run, arguments.checkpoint)
    with _kept(checkpoint):
        _describe(checkpoint)


def _describe(checkpoint: Checkpoint) -> None:
    manifest = checkpoint.manifest
    show(f"{checkpoint.path}: {manifest.size_bytes:,} bytes in {len(manifest.files)} files")
    show(f"  the next batch is number {manifest.epoch_step + 1} of epoch {manifest.epoch}, after {manifest.step} steps")
    show(f"  seed {manifest.config['train']['seed']}, trained on {manifest.dataset}")
    for older in checkpoint.older:
        show(f"  needs {older.path.name}, {older.manifest.size_bytes:,} bytes")
    rows = "rows that changed" if manifest.parent else "touched rows"
    for table, shards in manifest.shards.items():
        count, dtypes = 0, set()
        for path in checkpoint.table_files(table):
            places = read_entries(path)
            dtypes |= {array.dtype for name, array in row_layout(path, places).items() if name == ROWS}
            count += places[ROW_IDS].shape[0]
        of_all = f"{count:,} {rows} of {manifest.data['vocabulary_size']:,}"
        show(f"  {table} table: {of_all}, {' and '.join(dtypes)}, in {shards} files")
    for name, value in manifest.metrics.items():
        show(f"  {name} on valid: {value:.6g}")
    for name, record in manifest.files.items():
        show(f"  {record['checksum']}  {record['size_bytes']:>14,}  {name}")


def _verify(arguments: argparse.Namespace) -> None:
    checkpoint = named_or_best(arguments.run, arguments.checkpoint)
    with _kept(checkpoint):
        _verify_with_bar(checkpoint)
    count = f"{len(checkpoint.chain)} checkpoints, " if checkpoint.older else ""
    count += f"{len(list(checkpoint.files()))} files, {checkpoint.num_bytes:,} bytes"
    show(f"{checkpoint.path}: whole, {count} with the checksums of the manifests")


def _verify_with_bar(checkpoint: Checkpoint) -> None:
    with byte_bar("verify", checkpoint.num_bytes) as bar:
        checkpoint.verify(bar.update)


def byte_bar(title: str, total: int) -> AbstractContextManager[tqdm]:
    """Return a progress bar on the console with the label `title`, which counts processed bytes up to `total`."""
    return progress_bar(total=total, desc=title, unit="B", unit_scale=True, unit_divisor=1024)


def _reshard(arguments: argparse.Namespace) -> None:
    show(f"written: {reshard(arguments.checkpoint, arguments.folder, arguments.shards)}")


def reshard(path: Path, folder: Path, num_shards: int) -> Path:
    """Copy the checkpoint `path` into a new folder step-NUMBER in `folder`, with `num_shards` files per table and the
    same rows. Return the new folder.

    Raise ValueError if `num_shards` is below 1, if the checkpoint is damaged, or if another process saves checkpoints
    in `folder`. Raise FileExistsError if `folder` already contains a checkpoint of this step.
    """
    if num_shards < 1:
        raise ValueError(f"a table has 1 file or more, found --shards {num_shards}")
    checkpoint = open_named(path)
    target = folder / step_name(checkpoint.manifest.step)
    with _own(folder, "give another FOLDER, or wait for its end"), _kept(checkpoint):
        if target.exists():
            raise FileExistsError(f"{target} is there already; give another folder, or remove it")
        _verify_with_bar(checkpoint)
        with byte_bar("write", checkpoint.num_bytes) as bar:
            return rewrite(checkpoint, folder, num_shards, bar.update)


def _compact(arguments: argparse.Namespace) -> None:
    path: Path = arguments.checkpoint
    if read_manifest(path).parent is None:
        show(f"{path} is a full checkpoint already")
        return
    advice = f"wait for its end, or write a full one elsewhere: checkpoint reshard {path} FOLDER --shards 1"
    with _own(path.parent, advice):
        # Open the checkpoint only while holding the lock of its folder. Without the lock, a training run could remove
        # or rewrite the checkpoints on which it builds, if it is a delta (a checkpoint with changed rows only).
        checkpoint = open_named(path)
        with byte_bar("compact", 2 * checkpoint.num_bytes) as bar:
            compact(checkpoint, max(checkpoint.manifest.shards.values(), default=1), bar.update)
    show(f"{path} is a full checkpoint now")


@contextmanager
def _own(folder: Path, advice: str) -> Iterator[None]:
    """Hold the lock of a folder of checkpoints during the `with` block, as a training run does. Create the folder if it
    does not exist, and remove it after an error if it is still empty.

    Raise ValueError, which ends with `advice`, if another process holds the lock.
    """
    is_new = not folder.exists()
    in_use = f"another process (a training, or a command such as this one) saves checkpoints in {folder}; {advice}"
    with lock_folder(folder, in_use=in_use):
        try:
            yield
        except BaseException:
            if is_new:
                (folder / LOCK_FILE).unlink()
                with suppress(OSError):  # An OSError means that the folder is not empty, so it stays.
                    folder.rmdir()
            raise


@contextmanager
def _kept(checkpoint: Checkpoint) -> Iterator[None]:
    """If the `with` block, which reads `checkpoint`, fails because a training run has removed or compacted (rewritten)
    the checkpoint meanwhile, raise a ValueError that says so. Pass on other errors.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        if checkpoint.is_kept():
            raise
        raise ValueError(
            f"{checkpoint.path} was removed or written anew while it was read: a training keeps those that "
            "checkpoint.keep_last and checkpoint.keep_best name; take a newer one, or the same one again"
        ) from error


def _export_rows(arguments: argparse.Namespace) -> None:
    from app.scoring.trained.export_rows import (
        # Imported in this function, because the import loads pyarrow, which the other actions do not need.
        export_rows,
    )
    from app.scoring.trained.trained_model import read_trained_on

    checkpoint = open_named(arguments.checkpoint)
    dataset, schema = read_trained_on(checkpoint, arguments.dataset)
    check_same_inputs(checkpoint.manifest, schema, dataset)
    with _kept(checkpoint):
        _verify_with_bar(checkpoint)
        num_rows = export_rows(checkpoint, arguments.table, dataset, schema, arguments.output)
    show(f"written: {arguments.output}, {num_rows:,} touched rows of {schema.vocabulary_size:,}")
