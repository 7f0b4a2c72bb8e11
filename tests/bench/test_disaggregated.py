"""The canary of a pair of servers finds what it is for: lost requests, other tokens, no blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jengine.bench.disaggregated.__main__ import bench, printed
from jengine.bench.disaggregated.run import Canaries, failures, run

SPEED = {
    "completed": 20, "failed": 0, "output_throughput": 100.0, "p99_itl_ms": 10.0,
    "median_ttft_ms": 5.0,
}  # fmt: skip
GOOD: dict[str, Any] = {
    "mixed": SPEED,
    "pair": {**SPEED, "output_throughput": 80.0, "p99_itl_ms": 5.0},
    "requests": 10,
    "lost": [],
    "lost_count": 0,
    "lost_with_the_decode_server": 1,
    "songs": 5,
    "other_songs": [],
    "failed_songs": [],
    "tokens_that_travelled": 96.0,
    "kills": [{"killed": "prefill", "recovery_s": 3.0}],
    "held": {"num_requests_running": 0.0},
    "left": 0,
}
SETTINGS = Canaries(model="demo")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"lost_count": 1}, "requests were lost"),
        ({"other_songs": ["x"]}, "other tokens than one server"),
        ({"failed_songs": ["x"]}, "the canary failed"),
        ({"tokens_that_travelled": 0.0}, "no block travelled"),
        ({"kills": []}, "nothing was killed"),
        ({"kills": [{"killed": "decode", "recovery_s": None}]}, "did not recover"),
        ({"pair": {**SPEED, "failed": 2}}, "measured load failed"),
        ({"held": {"num_requests_running": 1.0}}, "something is held"),
        ({"held": {"num_requests_running": None}}, "does not tell what it holds"),
        ({"left": 1}, "processes are left"),
    ],
)
def test_what_fails_a_pair(change: dict[str, Any], words: str | None) -> None:
    found = failures(SETTINGS, {**GOOD, **change})
    assert found == [] if words is None else len(found) == 1 and words in found[0]


def test_flags_of_the_servers_come_after_two_dashes() -> None:
    given, settings = bench.parse(["tiny", "--seconds", "9", "--", "--max-num-seqs", "4"])
    assert given.log is None and settings.model == "tiny" and settings.seconds == 9
    assert settings.flags == ("--max-num-seqs", "4")


def test_the_pair_is_printed_beside_one_server() -> None:
    text = printed({**GOOD, "failed": []})
    assert "pair / mixed: throughput 0.80, ITL p99 0.50" in text
    assert "killed: prefill, back after 3.0 s" in text and text.endswith("Passed.")
    assert "FAILED: a; b" in printed({**GOOD, "mixed": None, "pair": None, "failed": ["a", "b"]})


@pytest.mark.slow
def test_a_pair_of_servers_survives_a_kill(tmp_path: Path) -> None:
    settings = Canaries(
        model="demo", flags=("--max-num-seqs", "4", "--enforce-eager"), seconds=20.0, clients=2,
        kill_pause=8.0, prompts=4, input_tokens=40, output_tokens=8, most_recovery=300.0,
    )  # fmt: skip
    result = run(settings, tmp_path, lambda line: None)
    assert result["failed"] == [] and result["kills"][0]["killed"] == "prefill"
    assert result["tokens_that_travelled"] > 0
