"""What runs in a new process before the program itself: privileges, parent-death signal, then exec.

Run by its path with ``python -I -S``. A function between fork and exec (``preexec_fn``) could deadlock in a process
with threads, and Python warns of it from 3.12 on; a program of some 20 ms can't.
"""

import ctypes
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def launch(owner: int, death_signal: int, account: str, command: list[str]) -> None:
    """Become the command. Never returns: ends with 127 and a line on stderr where the command can't be run."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    if account:
        user, group = (int(number) for number in account.split(":"))
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    if prctl is not None:
        prctl(SET_PARENT_DEATH_SIGNAL, death_signal, 0, 0, 0)  # after setuid, which clears it
    if os.getppid() != owner:  # it died before the signal was set
        os._exit(1)
    # The interpreter ignores some signals, and what is ignored stays so across exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(2, f"can't run {command[0]}: {error.strerror}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    launch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
