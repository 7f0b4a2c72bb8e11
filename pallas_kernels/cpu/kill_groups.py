"""Watchdog that kills compilers left by a killed process.

    python -I -S kill_groups.py < PIPE

Each line of the pipe reports a process group that started (+ID) or ended (-ID). At end of file,
which the writer's death causes, the groups still running are killed.
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
