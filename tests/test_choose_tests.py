"""What CI chooses among the slow tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("choose_tests", ROOT / ".ci" / "choose_tests.py")
assert spec is not None and spec.loader is not None
ci = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ci)

KNOWN = ci.files()


def reached(*changed: str) -> dict[str, int]:
    near = ci.distances(map(Path, changed), KNOWN)
    return {str(file): distance for file, distance in near.items()}


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


def test_every_slow_file_is_known() -> None:
    slow = ci.slow_files(KNOWN)
    assert Path("tests/kvcache/test_cache_machines.py") in slow
    assert Path("tests/sharding/eight_devices/test_tensor_parallel.py") in slow
