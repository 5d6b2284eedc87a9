"""The scratch file in which the rows of the tables lie if they are not kept in memory (`tables.storage`).

The file has no name, or loses it at once: the system frees its disk blocks when the process ends, however it ends.
Everything that must last is in the checkpoints.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import tempfile
from pathlib import Path

from app.tables.interface import WIDE, TablesSpec
from common.files import NO_ROOM, NoRoomError
from common.process import PROC, memory_limits, private_memory

MEMORY, AUTO = "memory", "auto"  # Values of the setting `tables.storage`. Any other value is the path of a folder.
# Upper bound of the memory for pages of the process's scratch files, as a share of the free memory. The pages
# themselves count as free memory here.
MOST_RESIDENT = 0.95
# File systems, as /proc/self/mountinfo names them, on which a scratch file would take memory or be too slow.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
ON_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|fuse\.(sshfs|glusterfs|s3fs|\w*ceph\w*)")


class ScratchFile:
    """An empty file in `folder` for the rows of `spec`. It can be mapped into memory, and vanishes when closed."""

    def __init__(self, folder: Path, spec: TablesSpec) -> None:
        """Create the empty file in `folder`. `spec` describes the tables whose rows it will hold.

        Raise FileNotFoundError if there is no such folder, ValueError if its file system is in memory or on the
        network, and OSError, naming the folder and the reason, if it cannot hold a file that can be mapped.
        """
        check_folder(folder)
        self._folder, self._most_bytes = folder, spec.vocabulary_size // spec.id_stride * spec.row_bytes()
        # The share of the process's memory that pages of this file may take. If the wide and the deep part see
        # different fields, each part has a file, and the wide part gets a tenth.
        self._share = MOST_RESIDENT * (0.1 if spec.tables == (WIDE,) else 0.9)
        self._num_owners, self._memory_limit = spec.id_stride, spec.memory_limit
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="tables-", buffering=0)  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise self.refusal(error.errno or errno.EIO) from error
        try:
            os.posix_fallocate(self.descriptor, 0, mmap.PAGESIZE)
            mmap.mmap(self.descriptor, mmap.PAGESIZE).close()
            os.truncate(self.descriptor, 0)
        except OSError as error:
            self.close()
            raise self.refusal(error.errno or errno.EIO) from error

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def most_resident(self) -> int:
        """Return how many bytes of the scratch file may be in memory now: a share of the memory that this process may
        take. The ranks on a host share the memory that is free there. Pages of files count as free memory.
        """
        free = min(limit.free for limit in memory_limits()) / self._num_owners
        if self._memory_limit:
            free = min(free, max(self._memory_limit - private_memory(), 0))
        return int(self._share * free)

    def refusal(self, number: int) -> OSError:
        """Return the error to raise if the scratch file cannot grow or cannot be mapped into memory, for the reason
        `number` (errno).
        """
        folder = self._folder
        if number in NO_ROOM:
            sizes = self._most_bytes, shutil.disk_usage(folder).free
            needed, free = (f"{size / 2**20:,.0f} MiB" for size in sizes)
            return NoRoomError(
                number,
                f"the rows of the tables need up to {needed} in {folder}, which has no room for more of them "
                f"({os.strerror(number)}; {free} are free); make room, or set tables.storage to a folder on a larger "
                "disk, and run the same command again: it resumes from the last checkpoint",
            )
        return OSError(
            number,
            f"the rows of the tables cannot be in {folder}, whose file system ({file_system_of(folder)}) has no file "
            f"for them that can be mapped into memory ({os.strerror(number)}); set tables.storage to a folder on a "
            "local disk",
        )

    def page_lost(self) -> str:
        """Return the message to show if a page of the file cannot be read or written."""
        return (
            f"the disk of {self._folder} lost rows of the tables (tables.storage); look at the system's log (dmesg), "
            "and run the same command again, perhaps with another folder: it resumes from the last checkpoint"
        )


def check_folder(folder: Path) -> None:
    """Raise FileNotFoundError or ValueError if no scratch file can be in `folder`. Change nothing."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"tables.storage={folder} is no folder; name an existing folder on a local disk, or choose memory or auto"
        )
    file_system = file_system_of(folder)
    if file_system in IN_MEMORY:
        raise ValueError(
            f"tables.storage: the folder {folder} is on {file_system}, which is itself in memory; name a folder on a "
            "local disk, or choose memory"
        )
    if ON_NETWORK.fullmatch(file_system):
        raise ValueError(
            f"tables.storage: the folder {folder} is on {file_system}, a network file system, for which each step "
            "would wait; name a folder on a local disk"
        )


def file_system_of(folder: Path) -> str:
    """Return the type of the file system that `folder` is on as the system names it, such as ext4, or "" if unknown."""
    resolved, mount_point, file_system = folder.resolve(), "", ""
    for line in (PROC / "self/mountinfo").read_text(encoding="utf-8").splitlines():
        place, _, rest = line.partition(" - ")
        point = place.split()[4].replace(r"\040", " ")
        # A later line hides an earlier one with the same mount point.
        if resolved.is_relative_to(point) and len(point) >= len(mount_point):
            mount_point, file_system = point, rest.split()[0]
    return file_system
