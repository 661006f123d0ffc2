"""A run in a child process, watched: one that ends without a word is an error, and says so.

Why: a plug-in that calls `os._exit(0)` ends its process at once, with the exit status of success
and no message. Nothing inside that process can tell of it. The process that waits passes signals
on, ends as the other one ended, and takes it along where it is killed itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence

from bench.console import complain

RUNS = ("run", "sweep")  # commands that decode a study
PASSED = {
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
}  # fmt: skip
PR_SET_PDEATHSIG = 1  # of prctl(2)
SI_KERNEL = 0x80  # of sigaction(2): a terminal has sent it to every process of the group
SILENT = (
    "error: the run has ended without a word (os._exit in a plug-in?), so it is not finished. The "
    "same command goes on; a decoder that ends it three times is passed over, its rows failed"
)


def end_with_parent(how: signal.Signals) -> None:
    """On Linux: when the parent of this process dies, it gets this signal."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)


def watched(words: Sequence[str], main: Callable[[], int]) -> int:
    """The exit status of `main()`. words: of the command line."""
    command = next((word for word in words if not word.startswith("-")), "")
    if sys.platform != "linux" or command not in RUNS:
        return main()
    heard, word = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED | {signal.SIGCHLD})
    child = os.fork()
    if not child:
        os.close(heard)
        end_with_parent(signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            return main()
        finally:
            os.write(word, b"ended")
    os.close(word)
    status = _wait(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if status < 0:  # of a signal: so does this one
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    if os.read(heard, 1):
        return status
    complain(SILENT)
    return status or 1


def _wait(child: int) -> int:
    """What became of a process: its exit status, less than 0 for a signal. A signal from a terminal
    has reached it already."""
    while True:
        info = signal.sigwaitinfo(PASSED | {signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            if info.si_code != SI_KERNEL:
                os.kill(child, info.si_signo)
            continue
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
