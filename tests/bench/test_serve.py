"""`jengine bench serve` against a scripted server: what it sends, counts, prints and keeps."""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from jengine.bench.serve import figures, report
from jengine.bench.serve.load import ServedLoad, arrivals
from jengine.bench.serve.measure import Target, send
from jengine.bench.serve.printed import printed
from jengine.bench.serve.reply import TimedReply
from jengine.bench.serve.samples import conversations
from jengine.bench.serve.settings import LoadSettings
from jengine.bench.serve.vocabulary import vocabulary_of
from jengine.cli.main import main
from jengine.cli.terminal import Terminal
from jengine.client.response_reader import ResponseReader
from jengine.demo import model_path
from jengine.errors import ConfigError
from tests.client.scripted_server import BUSY, CUT, MODEL, NO_END, REFUSED, ScriptedServer, scripted

SMALL = ["--num-prompts", "6", "--random-input-len", "5", "--random-output-len", "3"]


def bench(*words: str) -> tuple[int, list[str], str]:
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    status = main(["bench", "serve", *words], terminal=terminal)
    assert isinstance(terminal.stdout, io.StringIO) and isinstance(terminal.stderr, io.StringIO)
    return status, terminal.stdout.getvalue().splitlines(), terminal.stderr.getvalue()


def result(*words: str) -> dict[str, Any]:
    status, lines, errors = bench(*words)
    assert status == 0, errors
    return json.loads(lines[-1])


def test_completions_are_sent_counted_and_kept(tmp_path: Path) -> None:
    words = ["--metadata", "tp=1", "--ignore-eos", "--temperature", "0", "--header", "x-a=b"]
    with scripted(root="demo") as scene:
        status, lines, notes = bench(
            "--base-url", scene.url, *SMALL, *words, "--num-warmups", "2", "--save-result",
            "--save-detailed", "--result-dir", str(tmp_path), "--plots", str(tmp_path),
        )  # fmt: skip
    assert status == 0, notes
    found = json.loads(lines[-1])
    assert found["bench"] == "serve" and found["server"] == "tests 1.2"
    assert (found["completed"], found["failed"], found["num_prompts"]) == (6, 0, 6)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (42, 18)
    assert found["output_throughput"] == pytest.approx(18 / found["duration"])
    assert found["tp"] == "1" and found["request_rate"] == "inf"
    assert set(found["hardware"]) == {"processor", "cores", "memory_gb", "devices"}
    assert "x-a" not in found["command"] and "--num-prompts 6" in found["command"]
    assert len(scene.asked) == 8
    body = scene.asked[-1]
    assert body.pop("prompt").count(" ") == 5
    assert body == {
        "model": MODEL, "max_tokens": 3, "stream": True, "temperature": 0.0, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert {header["x-a"] for header in scene.headers} == {"b"}
    ids = {header["x-request-id"] for header in scene.headers[2:]}
    assert ids == {f"bench-{number}" for number in range(1, 7)}
    (file,) = tmp_path.glob("openai-infqps-scripted-*.json")
    kept = json.loads(file.read_text())
    assert kept["generated_texts"] == [" one two three"] * 6 and kept["command"] == found["command"]
    assert [len(itl) for itl in kept["itls"]] == [2] * 6
    assert {key: kept[key] for key in found} == found
    assert "Time to First Token" in (tmp_path / "serve.html").read_text()


def test_a_limit_of_requests_at_once_is_kept_and_waiting_is_reported() -> None:
    with scripted(seconds_per_token=0.005) as scene:
        words = ["--max-concurrency", "2", "--request-rate", "500", *SMALL]
        words += ["--percentile-metrics", "ttft,client_queue_time,e2el_including_client_queue"]
        found = result("--base-url", scene.url, *words)
    assert scene.most_running == 2
    assert found["max_concurrency"] == 2 and found["request_rate"] == 500
    assert found["p99_client_queue_time_ms"] > 10
    assert found["mean_e2el_including_client_queue_ms"] > found["mean_client_queue_time_ms"]
    assert "mean_itl_ms" not in found


def test_chats_of_several_turns_send_all_that_was_said() -> None:
    with scripted() as scene:
        words = [
            "--dataset-name",
            "multi_turn",
            "--multi-turn-num-turns",
            "3",
            "--num-prompts",
            "5",
        ]
        words += ["--random-input-len", "2", "--random-output-len", "2"]
        words += ["--random-prefix-len", "3", "--backend", "openai-chat"]
        found = result("--base-url", scene.url, *words)
        text = result("--base-url", scene.url, *words[:-2])
    assert found["completed"] == text["completed"] == 5
    chats = [body["messages"] for body in scene.asked[:5]]
    assert sorted(len(messages) for messages in chats) == [1, 1, 3, 3, 5]
    longest = max(chats, key=len)
    roles = [message["role"] for message in longest]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert longest[1]["content"] == " one two"
    assert all(
        chat[0]["content"].split()[:3] == longest[0]["content"].split()[:3] for chat in chats
    )
    prompts = sorted((body["prompt"] for body in scene.asked[5:]), key=len)
    assert prompts[-1].count(" one two") >= 2
    assert {body["max_completion_tokens"] for body in scene.asked[:5]} == {2}


def test_failures_are_counted_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    prompts = ["fine", f"a{REFUSED}", f"b{BUSY}", f"c{CUT}", f"d{NO_END}"]
    file.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    with scripted() as scene:
        words = ["--dataset-name", "custom", "--dataset-path", str(file), "--num-prompts", "5"]
        words += ["--custom-output-len", "2", "--disable-shuffle"]
        status, lines, _ = bench("--base-url", scene.url, *words)
    found = json.loads(lines[-1])
    assert (status, found["completed"], found["failed"]) == (0, 1, 4)
    said = "\n".join(lines[:4])
    for words_of in ("is refused", "queue is full", "engine died", "without [DONE]"):
        assert words_of in said
    assert found["total_output_tokens"] == 2


def test_after_a_failed_turn_the_conversation_ends() -> None:
    with scripted(words=[f"x{REFUSED}"]) as scene:
        # The answer ends the next prompt, which is then refused.
        words = ["--dataset-name", "multi_turn", "--random-input-len", "1", "--num-prompts", "4"]
        found = result("--base-url", scene.url, *words, "--random-output-len", "1")
    assert found["completed"] + found["failed"] == 4


def test_a_trace_is_sent_as_token_ids(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"prompt_token_ids": [5, 6], "max_tokens": 4}\n')
    with scripted(counts_usage=False) as scene:
        found = result("--base-url", scene.url, "--trace", str(file))
    assert scene.asked[0]["prompt"] == [5, 6] and scene.asked[0]["max_tokens"] == 4
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (2, 4)


def test_a_server_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(key="secret") as scene:
        status, _, errors = bench("--base-url", scene.url, *SMALL)
        assert status == 1 and "OPENAI_API_KEY" in errors
        found = result("--base-url", scene.url, *SMALL, "--api-key", "secret")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert result("--base-url", scene.url, *SMALL)["completed"] == 6
    assert found["completed"] == 6 and "secret" not in found["command"]


@pytest.fixture(scope="module")
def unasked() -> Iterator[ScriptedServer]:
    with scripted() as scene:
        yield scene


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--goodput", "ttft"], "expected METRIC:MILLISECONDS"),
        (["--goodput", "itl:5"], "ttft, tpot, e2el"),
        (["--request-rate", "0"], "expected more than 0"),
        (["--num-prompts", "0"], "--num-prompts 0: expected 1 or more"),
        (["--backend", "tgi"], "expected one of openai, vllm, openai-chat"),
        (["--dataset-name", "sharegpt"], "random, prefix_repetition, multi_turn, custom"),
        (["--dataset-name", "custom"], "--dataset-path"),
        (["--metric-percentiles", "101"], "numbers from 0 to 100"),
        (["--percentile-metrics", "tps"], "expected one of ttft"),
        (["--random-range-ratio", "1"], "less than 1"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-start-rps"),
        (["--metadata", "x"], "KEY=VALUE"),
        (["--model", "other"], "serves scripted"),
        (["--tokenizer", "/nowhere"], "folder with a tokenizer.json"),
    ],
)
def test_wrong_settings_are_refused_before_any_request(
    unasked: ScriptedServer, words: list[str], message: str
) -> None:
    status, _, errors = bench("--base-url", unasked.url, *words)
    assert (status, unasked.asked) == (1, []), errors
    assert message in errors


def test_flags_of_bench_serve_are_refused_elsewhere() -> None:
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    assert main(["bench", "host", "--request-rate", "3"], terminal=terminal) == 1
    assert "only bench serve has this flag" in terminal.stderr.getvalue()  # type: ignore[attr-defined]


def settings(**given: Any) -> LoadSettings:
    return LoadSettings(**given)


def test_arrivals_keep_the_rate_and_the_burstiness() -> None:
    even = arrivals(settings(request_rate=10, burstiness=math.inf), 100)
    assert np.diff(even) == pytest.approx(0.1)
    poisson = arrivals(settings(request_rate=10), 2000)
    assert poisson[-1] == pytest.approx(200)
    bursts = arrivals(settings(request_rate=10, burstiness=0.1), 2000)
    spread = [np.std(np.diff(times)) / np.mean(np.diff(times)) for times in (poisson, bursts)]
    assert spread[0] == pytest.approx(1, abs=0.1) and spread[1] == pytest.approx(10**0.5, rel=0.2)
    assert arrivals(settings(), 3) == [0, 0, 0]


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_rate_that_rises(strategy: str) -> None:
    rising = settings(
        ramp_up_strategy=strategy, ramp_up_start_rps=2, ramp_up_end_rps=8, burstiness=math.inf
    )
    gaps = np.diff(arrivals(rising, 101))
    middle = 5 if strategy == "linear" else 4
    assert 1 / gaps[[49, 99]] == pytest.approx([middle, 8], rel=0.05)


def test_prompts_have_exactly_the_tokens_that_were_asked_for() -> None:
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    asked = settings(num_prompts=8, random_input_len=40, random_prefix_len=10)
    vocabulary = vocabulary_of(None, "demo")
    assert vocabulary.exact
    found = conversations(asked, vocabulary)
    prompts = [str(turns[0].prompt) for turns in found]
    ids = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    assert [len(one) for one in ids] == [50] * 8 == [turns[0].prompt_len for turns in found]
    assert len({tuple(one[:10]) for one in ids}) == 1 and len({tuple(one[10:]) for one in ids}) == 8
    assert conversations(asked, vocabulary) == found
    spread = settings(num_prompts=200, random_input_len=40, random_range_ratio='{"input": 0.5}')
    lengths = {turns[0].prompt_len for turns in conversations(spread, vocabulary)}
    assert min(lengths) >= 20 and max(lengths) <= 60 and len(lengths) > 20


def test_repeated_prefixes() -> None:
    asked = settings(
        dataset_name="prefix_repetition", num_prompts=9, prefix_repetition_num_prefixes=3,
        prefix_repetition_prefix_len=6, prefix_repetition_suffix_len=2,
    )  # fmt: skip
    found = conversations(asked, vocabulary_of(None, "elsewhere"))
    beginnings = [tuple(str(turns[0].prompt).split()[:6]) for turns in found]
    assert sorted(beginnings.count(one) for one in set(beginnings)) == [3, 3, 3]


def test_parts_are_read_when_no_token_waits_for_it() -> None:
    found, response = TimedReply(3, 0.0), ResponseReader()
    response.status = 200
    for number, part in enumerate((b'data: {"choices":[{"te', b'xt":"a"}]}\n\ndata: [DONE]\n\n')):
        found.receive(response, part, float(number))
        assert not found.times
    found.end()
    assert found.success and (found.times, found.text) == ([1.0], "a")
    found.end()
    assert found.text == "a"


def reply(started: float, times: list[float], tokens: int | None = None, error: str = "") -> Any:
    """A reply as figures see it."""
    count = len(times) if tokens is None else tokens
    return SimpleNamespace(
        started=started, times=times, success=not error, error=error, prompt_len=10,
        output_len=count, ttft=times[0] - started, latency=times[-1] - started, queued=0.25,
        itl=list(np.diff(times)), text="",
        tpot=(times[-1] - times[0]) / (count - 1) if count > 1 else 0.0,
    )  # fmt: skip


def test_figures_are_counted_by_hand() -> None:
    replies = [
        reply(0.0, [0.1, 0.2, 0.4]),
        reply(0.5, [1.5], 1),
        reply(1.0, [1.2, 1.3], 4),
        reply(0.0, [9.0], error="no"),
    ]
    wanted = settings(goodput=["ttft:500", "tpot:120"], metric_percentiles="50,100")
    found = figures.figures(ServedLoad(replies, 2.0), wanted)
    assert (found["completed"], found["failed"]) == (3, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 8)
    assert (found["request_throughput"], found["output_throughput"]) == (1.5, 4.0)
    assert found["request_goodput"] == 0.5, "the first is too slow per token, the second at first"
    assert found["mean_ttft_ms"] == pytest.approx((100 + 1000 + 200) / 3)
    assert found["p50_ttft_ms"] == pytest.approx(200) and found["p100_ttft_ms"] == 1000
    assert found["mean_tpot_ms"] == pytest.approx((150 + 100 / 3) / 2), "one token has none"
    assert found["mean_itl_ms"] == pytest.approx((100 + 200 + 100) / 3)
    assert found["timeline"] == {"tokens": [3, 5], "requests": [2, 2]}
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (5.0, 2)
    shown = printed({**found, "max_concurrency": None, "request_rate": "inf"}, wanted)
    assert "Request goodput (req/s):                 0.50      " in shown
    assert "P50 TTFT (ms):                           200.00" in shown
    assert shown.splitlines()[1] == "============ Serving Benchmark Result ============"


def test_a_load_without_an_answer_still_has_figures() -> None:
    found = figures.figures(ServedLoad([reply(0.0, [1.0], error="no")], 1.0), settings())
    assert (found["completed"], found["failed"], found["mean_ttft_ms"]) == (0, 1, 0.0)
    about = {"command": "c", "commit": "x", "model_id": "m", "server": "<s>", "hardware": {
        "cores": 1, "processor": "p", "devices": []}}  # fmt: skip
    page = report.page({**found, **about})
    assert "m on &lt;s&gt;" in page and "<li>no</li>" in page


def test_a_cancelled_load_leaves_no_open_connection() -> None:
    async def until(done: Callable[[], bool]) -> None:
        for _ in range(6000):
            if done():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it never came to that")

    async def cancelled(asked: LoadSettings, scene: ScriptedServer) -> None:
        work = conversations(asked, vocabulary_of(None, "x"))
        sending = asyncio.ensure_future(send(asked, Target(asked), work))
        await until(lambda: scene.running == 3)
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()
        await until(lambda: scene.disconnects == 3)

    with scripted(seconds_per_token=0.02) as scene:
        asked = settings(base_url=scene.url, num_prompts=3, random_output_len=100_000)
        asyncio.run(cancelled(asked, scene))


def test_ready_check_waits_for_a_server() -> None:
    with scripted() as scene:
        url = scene.url
    status, _, errors = bench("--base-url", url, "--ready-check-timeout-sec", "1", *SMALL)
    assert status == 1 and "cannot be reached" in errors


def test_unknown_prompt_lines_name_the_line(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    asked = settings(dataset_name="custom", dataset_path=str(file))
    with pytest.raises(ConfigError, match="line 2: expected"):
        conversations(asked, vocabulary_of(None, "x"))
