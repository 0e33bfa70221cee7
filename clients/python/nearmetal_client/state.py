"""The file that keeps a session's state: a line for each change, rewritten when it is opened.

The Rust client reads and writes the same. A change is written before the frames that follow from it
are sent, so the state survives `kill -9`. It is not forced to the disk.
"""

from __future__ import annotations

import fcntl
import os

from .session import Session

_MAGIC = "nearmetal-client-state 1 session"


class StateError(Exception):
    """A state that cannot be used, and why."""


class StateFile:
    """The open file of a state."""

    def __init__(self, path: str, session: Session):
        """Opens it and restores the session; begins a new one if there is no file."""
        self._lock = open(path + ".lock", "a", encoding="ascii")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(f"another client uses the state in {path}") from error
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                _restore(file.read(), path, session)
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(f"{_MAGIC} {session.number}\n")
            file.writelines(line + "\n" for line in session.snapshot())
        os.rename(path + ".new", path)
        self._file = open(path, "ab", buffering=0)

    def append(self, changes: list[str]) -> None:
        """Appends changes."""
        self._file.write("".join(line + "\n" for line in changes).encode("ascii"))


def _restore(text: str, path: str, session: Session) -> None:
    # A process that was killed may have written a part of its last line: that one does not count.
    first, *lines = text[:text.rfind("\n") + 1].splitlines() or [""]
    if first != f"{_MAGIC} {session.number}":
        raise StateError(f"{path} is not the state of session {session.number}: it begins with "
                         f"`{first[:80]}`")
    for number, line in enumerate(lines, 2):
        try:
            session.restore(line)
        except ValueError as error:
            raise StateError(f"line {number} of {path} is no change of a session") from error
