"""Watchdog that kills compilers left by a killed process.

    python -I -S kill_groups.py < PIPE

Kills its own process group, which the compilers share, at the end of the pipe, which the writer's
death causes.
"""

from __future__ import annotations

import os
import signal
import sys

sys.stdin.read()
os.killpg(0, signal.SIGKILL)
