"""Kills the compilers of a process that was killed itself, and so could not.

    python -I -S kill_groups.py < PIPE

Each line of the pipe is a process group that was started (+ID) or has ended (-ID). The pipe ends
with the process that writes it; groups that run then are killed, with all that they have started.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

running = set[int]()
for line in sys.stdin:
    group = int(line[1:])
    (running.add if line[0] == "+" else running.discard)(group)
for group in running:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
