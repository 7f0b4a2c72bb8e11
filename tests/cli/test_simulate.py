"""`jengine simulate`: figures from a table of steps, pages, what is kept, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.fake_llm import FakeLLM, Result, run

SCHEDULE = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": 256,
            "prefill_tile": 4}  # fmt: skip
SPEC = {"kind": "full", "kv_heads": 2, "head_dim": 4}
CACHE = {"groups": [{"spec": SPEC, "layers": [0]}], "block_size": 4, "num_blocks": [200]}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Steps of 10 ms, and 1 ms for each row."""
    file = tmp_path / "steps.json"
    seconds = [[[0.01 + 0.001 * rows] * 2 for _ in (0, 64)] for rows in (0, 8)]
    found = {
        "bench": "steps", "model": "small", "schedule": SCHEDULE, "cache": CACHE, "depth": 1,
        "token_bytes": 64, "decode_rows": [0, 8], "prefill_tokens": [0, 64], "contexts": [8, 128],
        "seconds": seconds,
    }  # fmt: skip
    file.write_text(json.dumps(found), encoding="utf-8")
    return file


def simulate(table: Path, *words: str) -> dict[str, Any]:
    done = simulated(table, *words, "--json")
    assert done.status == 0, done.err
    return json.loads(done.out)


def simulated(table: Path, *words: str) -> Result:
    small = ("--requests", "40", "--input-len", "20", "--output-len", "10")
    return run(FakeLLM(), "simulate", "--table", str(table), *small, *words)


def test_figures_by_a_table(table: Path) -> None:
    found = simulate(table, "--rate", "0.5", "--replicas", "2", "--price", "3.6",
                     "--goodput", "ttft:10.5", "tpot:20")  # fmt: skip
    figures = found["figures"]
    assert figures["completed"] == 40
    assert figures["total_output_tokens"] == 400
    # Nearly always alone: a prompt takes 10 ms, a token 11 ms.
    assert figures["latency_ms"]["ttft"]["p50"] == pytest.approx(10)
    assert figures["latency_ms"]["itl"]["p50"] == pytest.approx(11, rel=0.005)
    assert figures["latency_ms"]["e2el"]["p50"] == pytest.approx(10 + 9 * 11)
    assert figures["good_share"] > 0.9
    hours = 2 * figures["seconds"] / 3600
    assert figures["cost"]["device_hours"] == pytest.approx(hours)
    dollars = figures["cost"]["dollars_per_million_output_tokens"]
    assert dollars == pytest.approx(3.6 * hours / 400 * 1e6)
    assert found["command"] == (
        "jengine simulate --replicas 2 --table steps.json --requests 40 --rate 0.5 "
        "--input-len 20 --output-len 10 --goodput ttft:10.5 tpot:20 --price 3.6"
    )


def test_a_page_with_another_result_beside(table: Path, tmp_path: Path) -> None:
    first, second, page = (tmp_path / name for name in ("by-prefix.json", "b.json", "page.html"))
    prefixes = ("--prefixes", "2", "--prefix-len", "40", "--replicas", "2")
    simulate(table, *prefixes, "--output-json", str(first))
    done = simulated(table, *prefixes, "--routing", "turns", "--output-json", str(second),
                     "--beside", str(first), "--html", str(page))  # fmt: skip
    assert done.status == 0, done.err
    assert "requests/s" in done.out and "Left out:" in done.out
    text = page.read_text(encoding="utf-8")
    assert "by-prefix" in text and "<svg" in text and "--routing turns" in text
    figures = json.loads(second.read_text())["figures"]
    headline = f"<h1>{figures['request_throughput']:,.2f} requests and "
    assert headline in text and "output tokens a second on 2 devices</h1>" in text
    assert "At the median" in text
    rates = [json.loads(one.read_text())["figures"]["prefix_hit_rate"] for one in (first, second)]
    assert 0 < rates[1] <= rates[0]


def test_a_pair_and_a_failure(table: Path) -> None:
    found = simulate(table, "--rate", "20", "--replicas", "2", "--prefill-replicas", "1",
                     "--fail", "0@0.5-1", "prefill:0@1.5-1.6", "--link", "0.001")  # fmt: skip
    figures = found["figures"]
    assert figures["completed"] == 40 and figures["unanswered"] == 0
    assert figures["rerun"] > 0 and figures["moved_bytes"] > 0
    assert set(figures["pools"]) == {"prefill replicas", "decode replicas"}


def test_replicas_that_die_at_random_come_back(table: Path) -> None:
    words = ("--rate", "20", "--replicas", "2", "--mtbf", "0.0003", "--repair", "0.5")
    figures = simulate(table, *words)["figures"]
    assert figures["completed"] == 40 and figures["unanswered"] == 0
    assert figures["failures"] > 0 and figures["rerun"] > 0
    assert simulate(table, *words)["figures"]["failures"] == figures["failures"]
    assert simulate(table, *words, "--seed", "5")["figures"]["seconds"] != figures["seconds"]
    assert simulate(table, *words[:4])["figures"]["failures"] == 0
    assert "times a replica died" in simulated(table, *words).out


def test_replicas_come_and_go_with_requests(table: Path) -> None:
    """A burst of more than a replica answers, and then little."""
    rows = ["arrival,prompt_tokens,output_tokens"]
    rows += [f"{i / 4},20,100" for i in range(120)] + [f"{30 + 10 * i},20,10" for i in range(20)]
    file = table.with_name("requests.csv")
    file.write_text("\n".join(rows), encoding="utf-8")
    given = ("--csv", str(file), "--replicas", "6", "--routing", "load")
    scaled = ("--min-replicas", "1", "--scale-target", "2", "--scale-start", "5",
              "--scale-down-after", "20")  # fmt: skip
    always, found = (simulate(table, *given, *words)["figures"] for words in ((), scaled))
    assert found["completed"] == always["completed"] == 140 and found["unanswered"] == 0
    assert found["total_output_tokens"] == always["total_output_tokens"]
    pool = found["pools"]["replicas"]
    assert 1 < pool["replicas_on_average"] < 3
    assert always["pools"]["replicas"]["replicas_on_average"] == 6
    assert found["cost"]["device_hours"] < always["cost"]["device_hours"] / 2
    assert found["latency_ms"]["ttft"]["p99"] > always["latency_ms"]["ttft"]["p99"]
    assert "of them at a time on average" in simulated(table, *given, *scaled).out


def test_replicas_that_never_start_are_absent_until_the_last_request_ends(table: Path) -> None:
    words = ("--rate", "20", "--replicas", "3", "--min-replicas", "1", "--scale-target", "100")
    figures = simulate(table, *words)["figures"]
    assert figures["seconds"] % 10 > 1
    assert figures["pools"]["replicas"]["replicas_on_average"] == pytest.approx(1)
    assert figures["cost"]["device_hours"] == pytest.approx(figures["seconds"] / 3600)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "prompt"),
    [((), 64), (("--tp", "8", "--dcp", "2"), 64), (("--pcp", "4"), 64), (("--pcp", "4"), 2048)],
)
def test_context_parallelism_is_that_of_the_plan(layout: tuple[str, ...], prompt: int) -> None:
    words = ("qwen3-0.6b", "--device", "h100", *layout)
    trace = ("--requests", "5", "--rate", "0.01", "--input-len", str(prompt), "--output-len", "32")
    found = json.loads(run(FakeLLM(), "simulate", *words, *trace, "--json").out)
    planned = json.loads(run(FakeLLM(), "plan", *words, "--batch", "1", "--context",
                             str(prompt + 16), "--json").out)  # fmt: skip
    figures = found["figures"]
    itl = figures["latency_ms"]["itl"]["p50"]
    assert itl == pytest.approx(1e3 * planned["decode"]["expected"], rel=0.01)
    sizes = dict(zip(layout[::2], map(int, layout[1::2]), strict=True))
    devices = sizes.get("--tp", 1) * sizes.get("--pcp", 1)
    assert figures["pools"]["replicas"]["devices"] == devices


@pytest.mark.slow
def test_the_busiest_experts_slow_all_down() -> None:
    words = ("deepseek-v3", "--device", "b200", "--replicas", "64", "--ep", "64", "--requests",
             "20", "--rate", "2", "--input-len", "64", "--output-len", "8", "--json")  # fmt: skip
    times = []
    for share in ("1", "0.5"):
        found = json.loads(run(FakeLLM(), "simulate", *words, "--balancedness", share).out)
        times.append(found["figures"]["latency_ms"]["tpot"]["p50"])
        assert any("uneven choices" in note for note in found["left_out"]) == (share == "1")
    assert times[0] < times[1] < 2 * times[0]


@pytest.mark.slow
def test_prompts_are_divided_where_they_run_and_caches_where_answers_do() -> None:
    words = ("qwen3-0.6b", "--tp", "4", "--dcp", "2", "--pcp", "2", "--prefill-replicas", "1",
             "--prefill-tp", "1", "--requests", "5", "--json")  # fmt: skip
    found = json.loads(run(FakeLLM(), "simulate", *words).out)
    pools = found["scenario"]["pools"]
    assert [(pool["dcp"], pool["pcp"]) for pool in pools] == [(1, 2), (2, 1)]
    assert [pool["devices"] for pool in found["figures"]["pools"].values()] == [2, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tp", "2", "--dcp", "3"), "--dcp 3 with --tp 2"),
        (("--pcp", "2", "--pp", "2"), "--pcp 2 with --pp 2"),
        (("--ep", "1", "--balancedness", "0"), "expected a share above 0"),
        (("--balancedness", "0.5"), "expected --ep or --prefill-ep"),
    ],
)
def test_refused_with_a_model(words: tuple[str, ...], message: str) -> None:
    done = run(FakeLLM(), "simulate", "llama-8b", *words)
    assert done.status == 1 and message in done.err, done.err


def test_replicas_that_serve_in_turns_are_simulated_apart_with_the_same_outcome(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--rate", "40", "--replicas", "4", "--routing", "turns", "--spread", "0.5")
    apart = simulate(table, *words)
    assert apart["scenario"]["groups"] == 1
    module = "jengine.capacity.simulation.replica_groups.in_independent_groups"
    monkeypatch.setattr(module, lambda scenario: scenario)
    together = simulate(table, *words)
    for name in ("ttft", "itl", "tpot", "e2el"):
        one, other = (found["figures"]["latency_ms"][name] for found in (apart, together))
        assert one == pytest.approx(other), name
    one, other = (found["figures"]["pools"]["replicas"] for found in (apart, together))
    del one["cache_use_while_busy"], other["cache_use_while_busy"]  # jumps take blocks ahead
    assert one == pytest.approx(other)


@pytest.mark.slow
def test_groups_run_in_processes_of_their_own(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jengine.capacity.simulation.replica_groups.WORTH", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    words = ("--rate", "20", "--replicas", "4", "--routing", "load")
    figures = simulate(table, *words, "--groups", "2")["figures"]
    assert figures["completed"] == 40 and figures["pools"]["replicas"]["replicas"] == 4
    assert figures["total_input_tokens"] == simulate(table, *words)["figures"]["total_input_tokens"]


@pytest.mark.slow
def test_a_model_on_devices_that_are_not_here(caplog: pytest.LogCaptureFixture) -> None:
    words = ("qwen3-0.6b", "--device", "h100", "--requests", "20", "--rate", "0.2", "--json")
    done = run(FakeLLM(), "simulate", *words)
    assert not [record for record in caplog.records if "no effect" in record.message]
    found = json.loads(done.out)
    planned = json.loads(run(FakeLLM(), "plan", *words[:3], "--batch", "1", "--context", "576",
                             "--json").out)  # fmt: skip
    itl = found["figures"]["latency_ms"]["itl"]["p50"]
    assert itl == pytest.approx(1e3 * planned["decode"]["expected"], rel=0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--replicas", "0"), "--replicas 0: expected more than 0"),
        (("--replicas", "2000"), "1 to 1024"),
        (("--replicas", "3", "--groups", "2"), "divisor of the 3"),
        (("--spread", "-1"), "--spread -1: expected 0 or more"),
        (("--dcp", "2"), "--dcp with --table"),
        (("--pcp", "2"), "--pcp with --table"),
        (("--tp", "2"), "--tp with --table"),
        (("--balancedness", "0.5"), "--balancedness with --table"),
        (("--mtbf", "-1"), "--mtbf -1: expected 0 or more"),
        (("--mtbf", "1", "--fail", "0@3"), "expected one of them"),
        (("--min-replicas", "2"), "expected 1 to the 1 of --replicas"),
        (("--min-replicas", "1", "--mtbf", "1"), "--min-replicas with --mtbf"),
        (("--min-replicas", "1", "--fail", "0@1"), "--min-replicas with --fail"),
        (("--min-replicas", "1", "--prefill-replicas", "1"), "with --prefill-replicas"),
        (("--min-replicas", "2", "--replicas", "2", "--groups", "2"), "expected one router"),
        (("--scale-start", "5"), "--scale-start without --min-replicas"),
        (("--repair", "5"), "--repair without --mtbf"),
        (("--fail", "soon"), "REPLICA@SECONDS"),
        (("--fail", "prefill:0@3"), "only with --prefill-replicas"),
        (("--fail", "4@3"), "a replica from 0 to 0"),
        (("--fail", "0@3-2"), "come back after"),
        (("--goodput", "itl:3"), "METRIC:MILLISECONDS"),
        (("--html", "/none/of/these.html"), "a folder that exists"),
        (("--csv", "/none.csv"), "No such file"),
        (("--beside", "a", "b", "c"), "up to two"),
        (("llama-8b",), "expected a MODEL, or --table"),
        (("--prefixes", "1", "--prefix-len", "400"), "40 were refused"),
    ],
)
def test_refused(table: Path, words: tuple[str, ...], message: str) -> None:
    done = simulated(table, *words)
    assert done.status == 1
    assert message in done.err


def test_a_table_of_something_else_is_refused(table: Path) -> None:
    table.write_text("{}")
    assert "bench growth --step-table" in simulated(table).err
