"""Claim the run folder for a launch (one start of a training): lock it, and decide what happens with the run that it
holds.

The folder of rank r is `device_<r>/`, or for a run with a name `NAME/` (rank 0) and `NAME.rank<r>/`, in the folder
where the launcher is started. This folder always holds the newest run:

- If there is no run, a new one starts.
- An unfinished run with the same settings and data is resumed.
- A finished run is continued if more epochs are asked for, and otherwise left alone.
- Any other run gets a number appended to its name, as in `device_0.1`, and a new run starts.

A run resumes from its newest whole checkpoint. Newer checkpoints that are damaged are renamed, with a warning.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO

from app.checkpoint.retention import whole_checkpoints
from app.checkpoint.write import clear_leftovers
from app.config.config import Config
from app.distributed.process_group import ONE_PROCESS, ProcessGroup, mark_collective
from app.run.decision import STATE_FILE, Plan, checkpoint_folder, make_plan
from app.run.folder import CONFIG_FILE, RunFolder, forget_after
from common.files import LOCK_FILE, lock_folder, sync_folder
from common.packages import python_command
from data_prep.prepared.schema import Schema

FIRST_RANK = "device_0"  # Name of the run folder of rank 0 (the first process) if the run has no name.
REFUSED = ".refused"
SAVES_TO = "(a training, or a checkpoint command) saves to"

# Type of a function that returns the path of the model that a new run starts from, or None if it starts from random
# values. The function raises an error if the model is unusable.
FindSource = Callable[[], Path | None]


class RunIsFinishedError(Exception):
    """Raised if the requested run exists and is finished. `reason` says why it ended."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the run in {path} is finished: {reason}; evaluate it with: {evaluation_of(path)}. "
            "More train.epochs (or train.steps) train on, train.resume=never starts a new run"
        )
        self.path = path


class Claim:
    """The locks that one process of a training holds on its run folder `path` and the folder of checkpoints until it
    ends.

    If the folder of an older run is renamed, a checkpoint folder outside the run folder keeps its name.
    """

    def __init__(self, path: Path, config: Config, rank: int = 0) -> None:
        """Lock the run folder if it exists. Raise FileExistsError if `path` is a file or a folder of something else.

        Raise ValueError if another process trains in the folder.
        """
        if path.exists() and not path.is_dir():
            raise FileExistsError(
                f"{path} is a file, expected a run's folder; move it away, or start from another folder"
            )
        _check_is_run(path)
        self.path, self.config, self.rank = path, config, rank
        self.checkpoints = checkpoint_folder(path, config)
        # Compare the paths as they are written, without following links: a link inside the run folder is renamed with
        # the folder, wherever it leads.
        self._is_within = Path(os.path.normpath(self.checkpoints)).is_relative_to(os.path.normpath(path))
        self._locks_in_run, self._lock_elsewhere = ExitStack(), ExitStack()
        self._existed = path.exists()
        if self._existed:
            self._locks_in_run.enter_context(_lock(path))

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the locks."""
        self._lock_elsewhere.close()
        self._locks_in_run.close()

    def look(
        self, schema: Schema, find_source: FindSource, damaged: Mapping[Path, str] | None, make_folders: bool = True
    ) -> tuple[Plan, Path | None]:
        """Lock the checkpoint folder, remove the unfinished files of interrupted saves from it, and decide what the
        launch does.

        Return the plan of the launch and, if the plan is a new run that starts from a model, the path of this model,
        otherwise None. With `make_folders=False`, no folder is created. Raise RunIsFinishedError if nothing is left to
        train, and ValueError or OSError if the folders cannot be used (`open_run` lists the cases).
        """
        if self.checkpoints.is_dir() or (make_folders and (self.path.exists() or not self._is_within)):
            self._lock_checkpoints()
        if self.path.exists():
            clear_leftovers(self.checkpoints)
        plan = make_plan(self.path, self.config, schema, damaged)
        if plan.kind != "new":
            return plan, None
        source = find_source()
        # When the folder of an older run is renamed, a checkpoint folder outside of it keeps its name and its
        # checkpoints. So a new run must not use such a folder if it has checkpoints: those of the two runs would mix.
        if self.config.checkpoint.dir and (whole := whole_checkpoints(self.checkpoints)):
            raise ValueError(
                f"a new run starts ({plan.reason}), but checkpoint.dir={self.checkpoints} holds checkpoints of another "
                f"one, up to {whole[-1].path.name}; give another folder, or move them away"
            )
        return plan, source

    def put_aside(self, plan: Plan, source: Path | None, num_ranks: int) -> tuple[int, str]:
        """Rename checkpoints that cannot be used. If a new run has fewer ranks (`num_ranks`) than the older run, also
        rename the folders of the ranks that only the older run had.

        Return two values: the number that is appended to the names of the older run's folders, and a new value of the
        setting `train.init_from`. That value is "", unless the model that the setting names (`source`) lies in one of
        the renamed folders.
        """
        if plan.checkpoint is not None:
            # The resumed run takes the steps of these unusable checkpoints again, and saves new checkpoints with the
            # same names. So rename the unusable ones.
            for refused in plan.refused:
                aside = refused.with_suffix(REFUSED)
                refused.rename(aside.with_name(f"{aside.name}.{_free_number([aside])}"))
        stem = _stem_of_ranks(self.path)
        beside = self.path.parent.iterdir() if self.path.parent.is_dir() else ()
        folders = [folder for folder in beside if re.fullmatch(rf"{re.escape(stem)}\d+", folder.name)]
        number, new_source = _free_number([*folders, self.path]), ""
        if plan.kind == "new":
            if source is not None:
                init_from = Path(self.config.train.init_from)
                new_source = _displaced(init_from, source, [*folders, self.path], number)
            for folder in folders:
                # This rank of the older run does not exist in the new run, which has fewer ranks. So no rank of the new
                # run renames the folder, and it is renamed here.
                if int(folder.name.removeprefix(stem)) >= num_ranks:
                    folder.rename(folder.with_name(f"{folder.name}.{number}"))
        return number, new_source

    def take(self, plan: Plan, number: int) -> None:
        """Lock the run folder in which training begins or continues. If the plan starts a new run, first rename this
        rank's folder of the older run.

        `number` is appended to the name of the older folder.
        """
        if plan.kind == "new" and self.path.exists():
            self.path.rename(self.path.with_name(f"{self.path.name}.{number}"))
        if plan.kind == "new" or not self._existed:
            # If there was an older run, its folder has been renamed. Release the lock on the renamed folder before
            # locking the new one.
            self._locks_in_run.close()
            self._locks_in_run.enter_context(_lock(self.path))
            if self.rank == 0 and self._is_within:
                self._lock_checkpoints()
            sync_folder(self.path.parent)

    def _lock_checkpoints(self) -> None:
        locks = self._locks_in_run if self._is_within else self._lock_elsewhere
        locks.enter_context(_lock(self.checkpoints, SAVES_TO))


def rank_folder(first: Path, rank: int) -> Path:
    """Return the folder of a rank of the run in `first`: device_1 next to device_0, or wide.rank1 next to wide."""
    return first.with_name(f"{_stem_of_ranks(first)}{rank}") if rank else first


def _stem_of_ranks(first: Path) -> str:
    return first.name[:-1] if first.name == FIRST_RANK else f"{first.name}.rank"


def server_folder(first: Path, server: int) -> Path:
    """Return the folder of a server of the run in `first`: server_0 next to device_0, or wide.server0 next to wide."""
    return first.with_name(f"{'server_' if first.name == FIRST_RANK else f'{first.name}.server'}{server}")


def check_name(name: str) -> None:
    """Raise ValueError unless `name` can name a run folder.

    Names that end like the folders of other ranks, of servers or of older runs are not allowed.
    """
    is_taken = re.fullmatch(r"(device_|server_|.*\.(rank|server)?)\d+", name) and name != FIRST_RANK
    if is_taken or not re.fullmatch(r"\w[^/\n]*", name):
        raise ValueError(
            f"--name {name!r}: expected a name for a folder that is made here, without /, which begins with a letter "
            "or digit and does not end as those of other ranks and older runs do (device_1, wide.rank1, wide.1)"
        )


def _check_is_run(path: Path) -> None:
    """Raise FileExistsError if a folder with a name chosen by the user holds something other than a run.

    A new run would rename that folder.
    """
    if path.name == FIRST_RANK or not path.is_dir():
        return
    names = {entry.name for entry in path.iterdir()}
    if names - {LOCK_FILE} and not names & {STATE_FILE, CONFIG_FILE, "checkpoints"}:
        raise FileExistsError(
            f"{path} is no run's folder: it has no {STATE_FILE}, and holds {', '.join(sorted(names)[:3])}; "
            "give the run another name"
        )


def evaluation_of(path: Path) -> str:
    """Return the shell command with which a user evaluates the run in `path`. Messages show it."""
    return python_command(f"app evaluate --run {shlex.quote(min(os.path.relpath(path), str(path), key=len))}")


def check_launch(path: Path, config: Config, schema: Schema, find_source: FindSource) -> None:
    """Raise the errors that `open_run` would raise, without renaming anything.

    The command calls this function first, so that these errors come before the slow import of MindSpore.
    """
    with Claim(path, config) as claim:
        plan, _ = claim.look(schema, find_source, damaged={}, make_folders=False)
    if plan.kind == "finished":
        raise RunIsFinishedError(path, plan.reason)


def open_run(
    path: Path,
    config: Config,
    schema: Schema,
    group: ProcessGroup = ONE_PROCESS,
    find_source: FindSource = lambda: None,
    damaged: Mapping[Path, str] | None = None,
    asked: Config | None = None,
) -> tuple[RunFolder, Claim]:
    """Open the run folder to use, and rename an older run if necessary. Rank 0 decides for all ranks.

    Parameters: `path` is the run folder of rank 0, and `group` the ranks of the job. `find_source` finds the model that
    a new run starts from. `find_source` is called before any folder is renamed. If the model lies in a folder that is
    renamed then, `train.init_from` is set to the new path. `damaged` maps checkpoints that proved damaged when they
    were loaded to the reason; such checkpoints are not used. `asked` are the settings before `settings_of_run` changed
    them.

    Return the folder and the claim on it. The caller closes the claim.

    Raise RunIsFinishedError if there is nothing left to train, and OSError if nothing can be written. Raise ValueError
    if another process trains in the folder or saves to the same checkpoint folder, if `train.resume=require` finds
    nothing to resume, or if the checkpoints of a new run would mix with those of another run.
    """
    claim = Claim(rank_folder(path, group.rank), config, group.rank)

    def decide() -> tuple[Plan, int, str]:
        plan, source = claim.look(schema, find_source, damaged)
        return plan, *claim.put_aside(plan, source, group.size)

    try:
        plan, number, source = group.on_rank0(decide)
        if plan.kind == "finished":
            raise mark_collective(RunIsFinishedError(path, plan.reason))
        claim.take(plan, number)
        if source:
            config = replace(config, train=replace(config.train, init_from=source))
        run = RunFolder(claim.path, group.rank, plan, config, checkpoint_folder(path, config))
        if plan.checkpoint is not None:
            forget_after(run.path, plan.checkpoint.manifest)
        run.describe(schema, asked or config)
    except BaseException:
        claim.close()
        raise
    return run, claim


def _displaced(init_from: Path, source: Path, folders: list[Path], number: int) -> str:
    """Return the path that the model `source` has after `folders` are renamed, or "" if `init_from` stays valid.

    `init_from` is the setting, a path that leads to `source`. `number` will be appended to the folders' names.
    """
    for folder in folders:
        if init_from.resolve().is_relative_to(folder.resolve()):
            path = source.resolve()
            # Change `path` only if the model itself lies in a renamed folder. If only a link in that folder leads to
            # the model, which lies in a folder that keeps its name, `path` stays valid.
            if path.is_relative_to(folder.resolve()):
                path = folder.resolve().with_name(f"{folder.name}.{number}") / path.relative_to(folder.resolve())
            return str(path) if init_from.is_absolute() else os.path.relpath(path)
    return ""


def _free_number(paths: list[Path]) -> int:
    """Return the smallest number n such that `<path>.<n>` does not exist for any path in `paths`."""
    number = 1
    while any(path.with_name(f"{path.name}.{number}").exists() for path in paths):
        number += 1
    return number


def _lock(folder: Path, what: str = "trains in") -> IO[str]:
    in_use = (
        f"another process {what} {folder}; wait for it, or start from another folder (and with another "
        "checkpoint.dir, where that is set)"
    )
    return lock_folder(folder, advice="start from another folder, or give another checkpoint.dir", in_use=in_use)
