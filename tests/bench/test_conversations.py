"""Conversations: engines take turns on one trace, and what a peer refuses is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jengine.bench import conversations
from jengine.bench.conversations import ConversationTrace, PeerTiers, Talks
from jengine.bench.table import speeds

TRACE = ConversationTrace(conversations=2, turns=3, turn_tokens=20, answer_tokens=2)
# A peer that answers at once, with its cache's size and the prompts' lengths, and has one tier.
FAKE_PEER = """
import json, sys
settings = json.loads(sys.stdin.readline())
connector = settings["tier"].get("kv_transfer_config", {}).get("kv_connector")
if settings["tier"] and connector != "ExampleConnector":
    sys.exit("no such tier")
print(json.dumps({"ready": "fake 1.0", "startup_s": 0.5}), flush=True)
for line in sys.stdin:
    prompts = json.loads(line)["prompts"]
    answers = [[settings["cache_tokens"], len(one)] for one in prompts]
    seconds = [1e-3 * len(one) for one in prompts]
    print(json.dumps({"seconds": seconds, "answers": answers}), flush=True)
"""


@pytest.fixture
def fake_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conversations_peer.py").write_text(FAKE_PEER)
    monkeypatch.setattr(conversations, "PROGRAMS", tmp_path)


def test_a_turn_goes_on_with_what_was_said() -> None:
    asked: list[list[list[int]]] = []

    def asks(prompts: list[list[int]]) -> tuple[list[float], list[list[int]]]:
        asked.append(prompts)
        return [0.5] * len(prompts), [[len(one)] for one in prompts]

    talks = Talks(asks, 2)
    talks.turn([[7, 8], [9]])
    talks.turn([[5], [6]])
    assert asked == [[[7, 8], [9]], [[7, 8, 2, 5], [9, 1, 6]]]
    assert talks.seconds == [[0.5, 0.5], [0.5, 0.5]]


def test_a_tier_that_the_peer_refuses_is_told(fake_peer: None) -> None:
    peers = PeerTiers(sys.executable, "m", TRACE)
    again = conversations.vllm_again(peers, [[1] * 30, [2] * 40])
    assert again == {"vllm, folder, the same prompts again": [0.03, 0.04]}
    for tier, settings in conversations.vllm_tiers("folder", 2**20).items():
        assert peers.opened(tier, settings, conversations.ExitStack()) is None
        assert "no such tier" in peers.refused[tier]
    assert list(peers.refused) == ["host", "folder"]


def test_the_table_compares_what_the_peer_has() -> None:
    names = {name for _, ours, other in speeds.PEER_CONVERSATIONS for name in (ours, other)}
    times = {name: {"mean_ms": 10.0} for name in {*names, "recompute, last turn"}}
    result: dict[str, Any] = {
        "trace": {"conversations": 2, "turns": 3, "cached_share": 0.25}, "model": "m",
        "time_to_first_token": times, "of_recompute": {"host": 1.0, "folder": 1.0},
    }  # fmt: skip
    alone = list(speeds.conversations(result))
    beside = list(speeds.conversations({**result, "peer": "vllm 0"}))
    assert beside[: len(alone)] == alone and len(beside) == len(alone) + 4
    assert all(row.peer == "10.0 ms, vllm 0" for row in beside[len(alone) :])


@pytest.mark.slow
def test_all_engines_take_turns(
    fake_peer: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conversations, "check_peer", lambda name, python: None)
    words = ["--conversations", "2", "--turns", "3", "--turn-tokens", "20", "--answer-tokens", "2"]
    assert conversations.main([*words, "--against", "vllm"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    told = result["time_to_first_token"]
    assert {name for _, *both in speeds.PEER_CONVERSATIONS for name in both} <= set(told)
    assert set(result["of_recompute"]) == {"host", "device", "folder"}
    # The second and third prompt: 20 tokens more, and the answer of two tokens before.
    assert told["vllm, recompute"]["mean_ms"] == pytest.approx((42 + 64) / 2)
    assert result["peer"] == "fake 1.0" and set(result["refused_by_peer"]) == {"host", "folder"}
    assert sum(line.startswith("vLLM refused") for line in lines) == 2
