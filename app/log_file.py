"""Files that grow by lines or records, of a run that goes on where they cannot be written."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from common.files import sync_folder

log = logging.getLogger(__name__)


class LogFile:
    """Appends to a file. What cannot be written (the disk is full) is kept and comes before the next lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten = b""

    @property
    def is_written(self) -> bool:
        """Whether all lines so far are in the file."""
        return not self._unwritten

    def append(self, text: str | bytes) -> None:
        """Add lines or records; a write error is logged once, when it begins."""
        was_written = self.is_written
        self._unwritten += text.encode() if isinstance(text, str) else text
        try:
            with self.path.open("ab", buffering=0) as file:
                while self._unwritten:
                    self._unwritten = self._unwritten[file.write(self._unwritten) :]
        except OSError as error:
            if was_written:
                log.error("error: %s cannot be written: %s; its lines are kept until it can", self.path, error)

    def sync(self) -> None:
        """Let a power cut take none of the lines so far; an error is logged."""
        try:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            sync_folder(self.path.parent)
        except FileNotFoundError:  # nothing has been written yet
            pass
        except OSError as error:
            log.error("error: %s cannot be synced: %s; a power cut may take its last lines", self.path, error)
