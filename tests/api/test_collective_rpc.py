"""collective_rpc, and the calls that plugins register for it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jengine import LLM, AsyncLLM
from jengine.assembly.processes.deployment import Deployment
from jengine.assembly.processes.engine_process import engine_over
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.executor import calls
from jengine.executor.calls import register_call
from tests.engine.process.cores import child_core

ROOT = Path(__file__).parent.parent.parent


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    by: int
    plus: int = 0


def scaled(loaded: Any, given: Scale) -> int:
    return loaded.program_counts().programs * given.by + given.plus


def test_a_function_runs_in_this_process(full_engine: LLM) -> None:
    def look(runner: Any, factor: int, plus: int = 0) -> int:
        assert runner is full_engine.engine.runners[0]
        return 2 * factor + plus

    assert full_engine.collective_rpc(look, args=(3,)) == [6]
    assert full_engine.collective_rpc(look, 10, (3,), {"plus": 1}) == [7]
    with pytest.raises(ZeroDivisionError):
        full_engine.collective_rpc(lambda runner: 1 / 0)
    with pytest.raises(RequestError, match="method is a int; expected a registered name"):
        full_engine.collective_rpc(5)  # type: ignore[arg-type]


def test_a_name_is_called_in_every_worker(full_engine: LLM, tmp_path: Path) -> None:
    assert full_engine.collective_rpc("programs") == full_engine.call_workers("programs")
    with pytest.raises(RequestError, match="Did you mean 'programs'"):
        full_engine.collective_rpc("program")
    with pytest.raises(RequestError, match="given 1 arguments; expected at most 0: it takes none"):
        full_engine.collective_rpc("programs", args=(1,))
    full_engine.collective_rpc("start_profile", args=(str(tmp_path),))
    full_engine.collective_rpc("stop_profile")
    assert list(tmp_path.rglob("*.pb"))


def test_a_call_that_takes_too_long_is_given_up(full_engine: LLM) -> None:
    with pytest.raises(TimeoutError, match=r"was not answered within 0\.05 s"):
        full_engine.collective_rpc(lambda runner: time.sleep(0.3), timeout=0.05)
    assert full_engine.collective_rpc(lambda runner: 4, timeout=10) == [4]


@pytest.mark.asyncio
async def test_functions_do_not_cross_a_process_boundary() -> None:
    with child_core() as client:
        args = EngineArgs("demo", skip_tokenizer_init=True, multiprocess=True)
        llm = AsyncLLM.over(engine_over(Deployment(args, Path("demo")), client, None, 60))
        assert (await llm.collective_rpc("programs"))[0].programs == 3
        with pytest.raises(UnsupportedFeature, match="multiprocess=True"):
            await llm.collective_rpc(lambda runner: 1)
        await llm.shutdown()


def test_a_registered_call_is_answered(full_engine: LLM) -> None:
    before = dict(calls.CALLS)
    try:
        register_call("scaled", scaled, Scale, int)
        register_call("scaled", scaled, Scale, int)  # by the same plugin in a second import
        with pytest.raises(ConfigError, match="there is a call of this name already"):
            register_call("scaled", lambda loaded, given: 0)
        count = full_engine.stats().programs
        assert full_engine.collective_rpc("scaled", args=(2,)) == [2 * count]
        assert full_engine.collective_rpc("scaled", kwargs={"by": 1, "plus": 5}) == [count + 5]
        with pytest.raises(RequestError, match="by"):
            full_engine.collective_rpc("scaled")
    finally:
        calls.CALLS.clear()
        calls.CALLS.update(before)


PLUGIN = """
from jengine.executor.calls import register_call
print("loaded", flush=True)
def add(): register_call("answer", lambda loaded, given: 42, result=int)
def fail(): raise OSError("no such thing")
"""


def write_plugin(folder: Path, function: str) -> None:
    (folder / "my_plugin.py").write_text(PLUGIN)
    info = folder / "my_plugin-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[jengine.plugins]\nmine = my_plugin:{function}\n")


def run_with(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(folder)!r}); {code}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_plugins_are_loaded_once_and_listed(tmp_path: Path) -> None:
    write_plugin(tmp_path, "add")
    code = (
        "from jengine.plugin_loading import load_plugins; load_plugins(); load_plugins(); "
        "from jengine.executor.calls import CALLS; print('answer' in CALLS); "
        "from jengine.cli.checks import plugins; print(*plugins.check())"
    )
    loaded, known, listed = run_with(tmp_path, code).splitlines()
    assert (loaded, known) == ("loaded", "True")
    assert "mine of my-plugin 1.5: my_plugin:add" in listed


def test_a_plugin_that_fails_is_named(tmp_path: Path) -> None:
    write_plugin(tmp_path, "fail")
    code = "from jengine.cli.checks import plugins; print(*(one.text for one in plugins.check()))"
    text = run_with(tmp_path, code)
    assert "the plugin 'mine' of my-plugin (my_plugin:fail) failed: OSError: no such thing" in text
    assert "uninstall my-plugin" in text
