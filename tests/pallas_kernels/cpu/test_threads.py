"""Matmuls divide among 2 to 64 threads without idle ones, and give the same bits on any number;
how these threads are woken."""

from __future__ import annotations

import heapq
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from pallas_kernels.choice import cpu_problem
from pallas_kernels.cpu.compiler import find_compiler
from tests.pallas_kernels.cpu.programs import compiled

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

THREADS = [1, 2, 3, 4, 8, 16, 64]
# Panels of the matmuls of a Llama of 135M and of 1B parameters.
PANELS = [18, 30, 96, 64, 512, 1536]
Task = tuple[int, int, int, int, int]  # group, blocks from and to, panels from and to


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("plan"), "plan", "matmul_plan")


def plan(planner: Path, threads: int, panels: int, rows: list[int], grain: int = 1) -> list[Task]:
    command = [str(planner), *map(str, (threads, panels, grain, *rows))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(g, b0, b1, p0, p1) for g, b0, b1, p0, p1 in (map(int, one.split()) for one in lines)]


def size(task: Task) -> int:
    """Work of a task: blocks times panels."""
    return (task[2] - task[1]) * (task[4] - task[3])


def makespan(tasks: list[Task], threads: int) -> int:
    """When the last thread is done, if each takes the next task once it is free."""
    ends = [0] * threads
    for task in tasks:
        heapq.heappush(ends, heapq.heappop(ends) + size(task))
    return max(ends)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("rows", [1, 8, 64, 544])
def test_no_thread_is_idle_for_long(planner: Path, threads: int, rows: int) -> None:
    most = subprocess.run([str(planner)], capture_output=True, text=True, check=True).stdout
    blocks = -(-rows // int(most))
    for panels in PANELS:
        tasks = plan(planner, threads, panels, [rows])
        # A panel and a block are one run of the micro kernel, which is not divided.
        ideal = max(1, -(-blocks * panels // threads))
        assert makespan(tasks, threads) <= max(ideal + 1, 1.15 * ideal), (panels, len(tasks))


@pytest.mark.parametrize("rows", [[0], [1], [33], [700], [3, 0, 40, 1, 0, 250]])
def test_every_block_meets_every_panel_once(planner: Path, rows: list[int]) -> None:
    for threads in (1, 2, 5, 64):
        for panels, grain in ((1, 1), (7, 1), (7, 2), (40, 2), (96, 1)):
            met: Counter[tuple[int, int, int]] = Counter()
            for group, b0, b1, p0, p1 in plan(planner, threads, panels, rows, grain):
                assert p0 % grain == 0  # tasks begin at cache lines of the result
                met.update((group, b, p) for b in range(b0, b1) for p in range(p0, p1))
            assert set(met.values()) <= {1}
            runs = [(g, p) for g, _, p in met]
            for group, count in enumerate(rows):
                for panel in range(panels):
                    assert (runs.count((group, panel)) > 0) == (count > 0)
            assert len({(g, b) for g, b, _ in met}) * panels == len(met)


def test_large_groups_come_first(planner: Path) -> None:
    sizes = [size(task) for task in plan(planner, 8, 48, [2, 100, 1, 30, 7])]
    assert sizes == sorted(sizes, reverse=True)


def check_waking(program: Path) -> None:
    """Each thread wakes few, the caller too; all come, and none uses a call that is over."""
    output = subprocess.run([program], capture_output=True, text=True, check=True, timeout=300)
    *counts, late, sums = output.stdout.splitlines()
    woken = {n: (own, total) for n, own, total in (map(int, line.split()) for line in counts)}
    assert set(woken) == {1, 2, 3, 4, 5, 17, 64}
    for threads, (own, total) in woken.items():
        assert own == min(threads - 1, 2)
        assert total == threads - 1
    assert (late, sums) == ("100", str(2000 * sum(range(9))))


def test_a_call_wakes_its_threads_as_a_tree(tmp_path: Path) -> None:
    check_waking(compiled(tmp_path, "waking", "tasks"))


@pytest.mark.slow
def test_waking_is_free_of_data_races(tmp_path: Path) -> None:
    compiler = find_compiler()
    found = subprocess.run(
        [*compiler, "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"{compiler[0]} has no ThreadSanitizer here")
    check_waking(compiled(tmp_path, "waking", "tasks", more=["-fsanitize=thread", "-g1"]))


@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_bits(tmp_path: Path) -> None:
    kernels = [
        "matmul",
        "scales",
        "matmul_plan",
        "micro_kernel",
        "weights",
        "large_pages",
        "rows",
        "tasks",
    ]
    program = compiled(tmp_path, "threads", *kernels)
    output = subprocess.run([program], capture_output=True, text=True, check=True, timeout=300)
    lines = [line.split() for line in output.stdout.splitlines()]
    assert [line[0] for line in lines] == ["1", "2", "7", "32"]
    assert {tuple(line[1:]) for line in lines} == {tuple(lines[0][1:])}
