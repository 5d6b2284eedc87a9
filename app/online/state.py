"""Read and write files of an online run: the status for monitoring, a user's permissions to train on parts (files of
the log) that the run refused, and counts of values without ids. Remove old bundles and prepared folders.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from app.checkpoint.retention import whole_checkpoints
from app.checkpoint.write import step_name
from app.run.decision import read_state
from app.run.folder import run_checkpoints
from app.scoring.bundle_folder import bundles_in, chains, rank, read_manifests
from app.serving.options import ServerOptions
from app.serving.statement import Statement
from common.files import is_locked, make_folder, new_file, parse_json, sync_folder, write_whole

log = logging.getLogger("app")

STATUS, RELEASED = "status.json", "released"
# Name of the folder in the run's folder that stores how often each value that has no id yet has occurred.
VALUE_COUNTS = "value_counts"
# Exit statuses of the commands `online` and `online status`: the run refuses to train on a part or to publish the
# newest model (HELD_ASIDE), or its process has ended with an error (NOT_RUNNING).
HELD_ASIDE, NOT_RUNNING = 5, 6
REMOVED, ADDED = ".removed", ".added.npz"
# Name of the prepared folder in the run's folder, which contains the growing vocabulary. After ids were renumbered,
# another folder is used, with the step appended to this name.
PREPARED = "prepared"


def read_status(work: Path) -> dict[str, Any]:
    """Return the content of status.json in the run's folder `work`. Raise FileNotFoundError if there is none, and
    ValueError if it is damaged.
    """
    path = work / STATUS
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no {path}: expected the folder of an online run; name it: --work DIR"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); the next start of the online run writes it again") from error
    if not isinstance(content, dict) or not isinstance(content.get("held"), dict):
        raise ValueError(f"{path} is none of an online run; give its folder by --work DIR")
    return content


def status_of(work: Path) -> tuple[dict[str, Any], int]:
    """Return the status of the online run in `work`: the content of status.json, `running` (whether its process runs),
    and `ended` (how it ended). Return also an exit status: NOT_RUNNING if the run ended with an error, HELD_ASIDE if
    there is a part that the run does not train on or a newest model that it does not publish, otherwise 0. Raise
    FileNotFoundError without a status.json, and ValueError if it is damaged.
    """
    content = {"running": is_locked(work), **read_status(work)}
    content["ended"] = "" if content["running"] else read_state(work).get("status", "")
    if content["ended"] not in ("", "stopped"):
        # A process that was killed could not record its end, so its state still says "running".
        content["ended"] = content["ended"].replace("running", "killed")
        return content, NOT_RUNNING
    return content, HELD_ASIDE if content["held"] or content.get("withheld") else 0


def release(work: Path, name: str) -> str:
    """Release the part (file of the log) `name` of the online run in `work`, so that the run trains on it although it
    was refused. Return the reason why it was held aside.

    Raise FileNotFoundError without a status.json, and ValueError if it is damaged, or if the part is not held aside or
    must never be trained on.
    """
    status = read_status(work)
    if name not in status["held"]:
        names = ", ".join(status["held"]) or "none"
        raise ValueError(f"{name} is not held aside by the online run in {work}; held are: {names}")
    if name not in (can_be := status.get("can_be_released", {})):
        raise ValueError(
            f"{name} cannot be released: {status['held'][name]}; repair the part, and rename it into the folder again"
        )
    make_folder(work / RELEASED)
    write_whole(work / RELEASED / name, can_be[name] + "\n")
    return str(status["held"][name])


def remove_old_bundles(folder: Path, keep: int) -> list[Path]:
    """Remove old bundles that an online run has published into `folder`, and return the removed folders.

    The `keep` newest versions stay, the version that a user has pinned for the service, and all bundles that these
    versions need (a delta needs the bundles that it builds on). If `keep` is 0, all bundles stay. A bundle whose name
    does not begin with the step of its checkpoint stays, too, because an online run names its bundles by the step.
    Raise ValueError if the file with the pinned version is damaged.
    """
    # If a process was killed while it removed a bundle, the bundle is still there under such a hidden name.
    for leftover in folder.glob(f".*{REMOVED}"):
        shutil.rmtree(leftover)
    manifests = read_manifests(folder)
    by_version = chains(manifests)
    pinned = Statement(ServerOptions(folder, name="")).read()
    newest = sorted(by_version.values(), key=rank)[-keep:]
    needed = {path for chain in [*newest, by_version.get(pinned or "", ())] for path, _ in chain}
    old = [path for path in bundles_in(folder) if keep and path in manifests and path not in needed]
    old = [path for path in old if path.name.startswith(step_name(manifests[path].checkpoint["step"]))]
    # Remove newer deltas (bundles with changed rows only) before the bundles that they build on, so that an
    # interruption leaves no delta without them.
    for path in sorted(old, key=lambda path: -manifests[path].generation):
        hidden = path.rename(path.with_name(f".{path.name}{REMOVED}"))
        sync_folder(folder)
        shutil.rmtree(hidden)
    return old


def remove_old_folders(work: Path, current: Path) -> None:
    """Remove the prepared folders in the run's folder `work`, except `current` and those that a checkpoint of the run
    was trained on.
    """
    folders = {path for path in work.glob(f"{PREPARED}*") if path.name != current.name}
    if folders:
        datasets = {Path(each.manifest.dataset).name for each in whole_checkpoints(run_checkpoints(work))}
        for path in folders:
            if path.name not in datasets:
                shutil.rmtree(path)


def save_counts(folder: Path, step: int, counts: dict[str, Any], since: int | None = None) -> None:
    """Save into `folder` how often values without ids have occurred up to `step`. If `since` is given, `counts` holds
    only the changes since that step.

    Remove old files: the two newest files with complete counts stay, and all files of changes after the older of the
    two.
    """
    make_folder(folder)
    if since is None:
        # A process that was killed before it wrote a delta checkpoint at this step may have left a file of changes.
        # Remove the file, because `load_counts` would otherwise read it in place of the whole counts that are written
        # now.
        (folder / f"{step_name(step)}{ADDED}").unlink(missing_ok=True)
        write_arrays(folder / f"{step_name(step)}.npz", **counts)
    else:
        write_arrays(folder / f"{step_name(step)}{ADDED}", **counts, since=np.array(since))
    whole = [path for path in sorted(folder.glob("step-*.npz")) if not path.name.endswith(ADDED)]
    for old in folder.glob("step-*.npz"):
        if old.name < whole[-2:][0].name:
            old.unlink()


def load_counts(folder: Path, step: int) -> list[dict[str, Any]]:
    """Read how often values without ids had occurred up to `step`, as `save_counts` saved it. Return the newest
    complete counts followed by all changes of the counts up to `step`, oldest first. If a file is missing or damaged,
    log a warning and return [].
    """
    newest_first: list[dict[str, Any]] = []
    try:
        while (path := folder / f"{step_name(step)}{ADDED}").is_file():
            newest_first.append(dict(np.load(path)))
            step = int(newest_first[-1].pop("since"))
        path = folder / f"{step_name(step)}.npz"
        return [dict(np.load(path)), *reversed(newest_first)]
    except (OSError, ValueError, EOFError, BadZipFile, KeyError) as error:
        log.warning("warning: values without ids are counted from 0, as %s cannot be read: %s", path, error)
        return []


def write_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays by name into the .npz file `path`, atomically."""
    with new_file(path, lone_writer=True) as beside, beside.open("wb") as file:
        np.savez(file, **arrays)
