"""What a server keeps of the memory that long texts took."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Texts of 2 MiB, each with something small behind it that lives on.
CODE = """
from pathlib import Path
from jengine.server.run import return_large_blocks
def mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
if {tuned}:
    return_large_blocks()
text = b"x" * 2**22
del text
texts, small = [], []
before = mib()
for _ in range(60):
    texts.append(b"x" * 2**21)
    small.append(bytearray(2000))
texts.clear()
print(mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_large_texts_leave_nothing_behind() -> None:
    def kept(*, tuned: bool) -> int:
        code = CODE.format(tuned=tuned)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        return int(done.stdout)

    assert kept(tuned=True) < 10
    assert kept(tuned=False) > 60, "else nothing need be done"
