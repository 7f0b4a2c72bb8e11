"""Nothing is ever unpickled in an engine, and what pickles for a living is not even loaded.

numpy and the standard library import `pickle` themselves; Python tells an audit hook of each class
that is looked up while something is unpickled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.engines import SMALL_DEMO

ROOT = Path(__file__).parent.parent
PROGRAM = f"""
import sys
found = []
sys.addaudithook(lambda event, args: found.append(args) if event == "pickle.find_class" else None)
import jengine
params = jengine.SamplingParams(temperature=0, max_tokens=4)
with jengine.LLM("demo", skip_tokenizer_init=True, **{SMALL_DEMO!r}) as llm:
    assert llm.generate([5, 6, 7], params)[0].finished
scripted = dict(executor="tests.server.scripted:Executor", show_progress=False)
with jengine.LLM("demo", **scripted) as llm:
    assert llm.chat([{{"role": "user", "content": "Hi"}}], params)[0].finished
print(found, [name for name in ("dill", "cloudpickle") if name in sys.modules])
import pickle
pickle.loads(pickle.dumps(jengine.SamplingParams))
print(len(found))
"""


@pytest.mark.slow
def test_an_engine_unpickles_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:2] == ["[] []", "1"], "the hook must see what is unpickled"
