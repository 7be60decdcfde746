"""The user id of a sandbox's processes: one that nothing else on the machine uses, if this process may choose one."""

import os
import pwd
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from sspo_sandbox.types import SandboxError

_HIGHEST_UID = 2_100_000_000  # above the ids of people, services and containers


class SandboxUser:
    """A user id, reserved among all sandboxes of this machine until `close`.

    Root takes a separate id for each sandbox: the kernel does not apply the process limit to root itself, and one
    sandbox's user cannot reach another's processes. Any other user keeps its id and relies on the user namespace.
    """

    def __init__(self) -> None:
        self.uid = os.getuid()
        self._reservation: socket.socket | None = None
        self._setpriv: str | None = None
        if os.geteuid() != 0:
            return
        self._setpriv = shutil.which("setpriv")
        if self._setpriv is None:
            raise SandboxError(
                "the sandbox needs setpriv to change its user, and it is not installed: apt-get install util-linux"
            )
        for uid in _candidate_uids():
            reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                reservation.bind(f"\0sspo-sandbox-{uid}")  # the kernel frees it when this process ends
            except OSError:
                reservation.close()
                continue
            self.uid, self._reservation = uid, reservation
            return
        raise SandboxError(
            "there is no free user id for the sandbox: run the process in a user namespace with more ids, or lower "
            "the number of sandboxes at a time"
        )

    @property
    def setpriv_command(self) -> list[str]:
        """Returns the command that changes to this user and then runs what follows it."""
        if self._reservation is None or self._setpriv is None:
            return []
        return [self._setpriv, f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--no-new-privs", "--"]

    def close(self) -> None:
        if self._reservation is not None:
            self._reservation.close()


def _candidate_uids() -> Iterator[int]:
    """Returns the ids that are valid in this user namespace and not in the user database, from the highest."""
    lines = [
        list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text(encoding="utf-8").splitlines()
    ]
    end = min(_HIGHEST_UID, max(first + length for first, _, length in lines))
    known = {entry.pw_uid for entry in pwd.getpwall()} | {65534}
    return (uid for uid in range(end - 1, max(end - 20_000, 1000), -1) if uid not in known)
