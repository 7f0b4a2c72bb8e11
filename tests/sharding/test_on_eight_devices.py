"""Starts the tests in `eight_devices/` in a process where the CPU is eight devices.

The number of devices is fixed when JAX starts, so this cannot be done in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
INSIDE = Path(__file__).parent / "eight_devices"


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_with_eight_devices(marked: str) -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    options = ["-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *options, "-m", marked, str(INSIDE)],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
