"""What CI chooses among the slow tests."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("choose_tests", ROOT / ".ci" / "choose_tests.py")
assert spec is not None and spec.loader is not None
ci = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ci)

KNOWN = ci.files()


def reached(*changed: str) -> dict[str, int]:
    near = ci.distances(map(Path, changed), KNOWN)
    return {str(file): distance for file, distance in near.items()}


@pytest.mark.slow
def test_a_test_is_reached_through_what_it_imports() -> None:
    near = reached("jengine/kvcache/block_pool.py")
    assert near["jengine/kvcache/block_pool.py"] == 0
    assert near["tests/kvcache/test_block_pool.py"] == 1
    assert near["tests/api/test_outputs.py"] > 1
    assert "tests/sampling/test_filters.py" not in near
    assert "tests/models/test_checkpoint.py" not in near


def test_names_in_strings_count() -> None:
    assert "tests/bench/test_gpu_proof.py" in reached("jengine/bench/gpu_proof/kernels.py")
    assert "tests/cli/test_main.py" in reached("jengine/cli/chat.py")


def test_fixtures_count() -> None:
    assert reached("tests/api/conftest.py")["tests/api/test_async.py"] == 1


def test_the_nearest_fit_the_budget_and_the_rest_takes_turns() -> None:
    slow = [Path(name) for name in "abcdefgh"]
    near = {Path("h"): 1, Path("a"): 2, Path("b"): 3}
    seconds = {"h": 100.0, "a": 60.0, "b": 50.0}
    days = [
        {str(file) for file in ci.chosen(slow, near, seconds, 200.0, day)}
        for day in range(ci.SHARES)
    ]
    assert all({"h", "a"} <= day for day in days)
    assert set.union(*days) == set("abcdefgh")
    assert sum("b" in day for day in days) == 1
    assert all(len(day) <= 4 for day in days)


def test_a_file_that_does_not_fit_keeps_no_other_out() -> None:
    slow = [Path(name) for name in "abcd"]
    near = {Path("a"): 0, Path("d"): 1, Path("b"): 1, Path("c"): 2}
    seconds = {"a": 500.0, "b": 90.0, "c": 20.0, "d": 30.0}
    for budget, wanted in ((60.0, "cd"), (130.0, "bd"), (650.0, "abcd")):
        day = next(day for day in range(ci.SHARES) if not slow[day % ci.SHARES :: ci.SHARES])
        assert "".join(map(str, ci.chosen(slow, near, seconds, budget, day))) == wanted


def test_what_reaches_everything_comes_after_what_is_near() -> None:
    near = reached("tests/conftest.py", "jengine/grammar/compiler.py")
    assert near["tests/grammar/test_compiler.py"] == 1
    assert near["tests/kvcache/test_block_pool.py"] == max(near.values())
    assert reached("pyproject.toml")["tests/kvcache/test_block_pool.py"] == 1


def test_every_slow_file_is_known() -> None:
    slow = ci.slow_files(KNOWN)
    assert Path("tests/kvcache/test_cache_machines.py") in slow
    assert Path("tests/sharding/eight_devices/test_tensor_parallel.py") in slow


def test_seconds_are_recorded_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of functions, of classes and of skipped modules; other files keep what they had."""
    report, seconds = tmp_path / "slow.xml", tmp_path / "seconds.json"
    monkeypatch.setattr(ci, "SECONDS", seconds)
    assert ci.recorded() == {}, "every file counts as usual"
    seconds.write_text(json.dumps({"tests/gone.py": 4, "tests/test_tour.py": 5}))
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.kvcache.test_kinds" name="test_one" time="1.25"/>
        <testcase classname="tests.kvcache.test_cache_machines.TestFull" name="runTest" time="2"/>
        <testcase classname="tests.kvcache.test_cache_machines.TestTwo" name="runTest" time="3"/>
        <testcase classname="" name="tests.executor.test_ray" time="0.04"/>
        </testsuite></testsuites>"""
    )
    ci.record([report], KNOWN)
    assert ci.recorded() == {
        "tests/executor/test_ray.py": 0.0,
        "tests/kvcache/test_cache_machines.py": 5.0,
        "tests/kvcache/test_kinds.py": 1.2,
        "tests/test_tour.py": 5,
    }
    report.write_text('<testsuite><testcase classname="tests.test_gone"/></testsuite>')
    with pytest.raises(SystemExit, match=r"tests\.test_gone is in no test file"):
        ci.record([report], KNOWN)
