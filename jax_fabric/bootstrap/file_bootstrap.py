"""Exchange of blobs through a folder that all processes see."""

from __future__ import annotations

import contextlib
import os
import stat
import time
import urllib.parse
import uuid
from pathlib import Path

from jax_fabric.arguments import text
from jax_fabric.bootstrap.exchange import Bootstrap
from jax_fabric.errors import InvalidArgument

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1
# By when a file that is there is to be seen on other machines.
_SEEN_S = 60.0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class FileBootstrap(Bootstrap):
    """A folder of a shared file system, NFS or Lustre, or of one machine.

    Each run has a folder of its own below it, which only its user may read: the secret of a fabric
    may be in there. Blobs are written aside and linked to their place, so that nobody sees half of
    one. Nobody cleans up: remove the folder when the run is over.
    """

    def __init__(self, folder: str | os.PathLike[str], run: str):
        """Makes the run's folder if it is not there.

        Args:
          folder: seen by all processes under some name.
          run: of this run alone, and equal in all of its processes: the job's id. With that of an
            earlier run processes would find the addresses of processes that are gone.

        Raises:
          InvalidArgument: the run's folder belongs to somebody else, or others may read it.
          OSError: it cannot be made.
        """
        self._folder = Path(folder) / _file_name(text("run", run))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.stat()
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
            raise InvalidArgument(
                f"folder={os.fspath(folder)!r}: {self._folder} must belong to user "
                f"{os.geteuid()} and be closed to others: chmod 700, or take another run"
            )

    def publish(self, key: str, blob: bytes) -> None:
        """See Bootstrap."""
        if not self._link(key, blob):
            raise RuntimeError(
                f"bootstrap: {key!r} was published before in {self._folder}: is run= that of "
                f"another run?"
            )

    def publish_first(self, key: str, blob: bytes) -> bytes:
        """See Bootstrap."""
        self._link(key, blob)
        return self.fetch(key, _SEEN_S)

    def fetch(self, key: str, timeout_s: float) -> bytes:
        """See Bootstrap."""
        deadline = time.monotonic() + timeout_s
        path = self._folder / _file_name(key)
        pause_s = _FIRST_PAUSE_S
        while True:
            with contextlib.suppress(FileNotFoundError):
                return path.read_bytes()
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"bootstrap: {key!r} was not published within {timeout_s} s in "
                    f"{self._folder}: is that process alive, and does it see that folder?"
                )
            # NFS remembers for a while that a file is not there, unless it reads the folder.
            os.listdir(self._folder)
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _link(self, key: str, blob: bytes) -> bool:
        """Whether this is the first blob under the key."""
        aside = self._folder / f".{uuid.uuid4().hex}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(descriptor)
            os.link(aside, self._folder / _file_name(key))
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        return True


def _file_name(key: str) -> str:
    """The key without slashes; one that begins with a dot is no file written aside."""
    return "_" + urllib.parse.quote(key, safe="")
