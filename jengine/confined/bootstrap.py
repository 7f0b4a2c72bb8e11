"""Bootstrap of a child process: ties it to its parent's lifetime before any slow import.

    python -m jengine.confined.bootstrap PARENT PROGRAM

Importing an engine takes seconds, in which the parent may die. Must import nothing that is slow.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # of Linux


def end_with(parent: int) -> None:
    """Have the system kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before this was asked for


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    runpy.run_module(sys.argv[2], run_name="__main__", alter_sys=True)
