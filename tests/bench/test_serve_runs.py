"""Comparisons of servers in turns, servers that are started, and tokens that tell the time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jengine
from jengine.bench.serve import clock_model, compare, launched, runs
from jengine.bench.serve.clock_model import age_ms, token_at
from jengine.bench.serve.load import ServedLoad
from jengine.bench.serve.runs import RunOrder, added, run
from jengine.bench.serve.settings import LoadSettings
from jengine.client.address import Address
from jengine.client.errors import ServerFailed
from jengine.client.server import Server
from jengine.errors import ConfigError
from tests.bench.test_serve import bench, result
from tests.client.scripted_server import BUSY, MODEL, scripted

SMALL = ["--num-prompts", "4", "--random-input-len", "5", "--random-output-len", "3"]
# A server as a program, which takes the flags that all servers take.
PROGRAM = """
import sys, uvicorn
from tests.client.scripted_server import ScriptedServer
print(sys.argv)
if "fail" in sys.argv:
    sys.exit("there is no such model")
port = int(sys.argv[sys.argv.index("--port") + 1])
class Healthy(ScriptedServer):
    async def _get(self, path, send):
        await super()._get("/version" if path == "/health" else path, send)
uvicorn.run(Healthy(), host="127.0.0.1", port=port, log_level="warning", lifespan="off")
"""


@pytest.mark.slow
def test_two_servers_take_turns() -> None:
    with scripted() as ours, scripted(seconds_per_token=0.01) as theirs:
        words = ["--base-url", ours.url, "--against", theirs.url, "--repeats", "2", *SMALL]
        status, lines, errors = bench(*words)
        assert status == 0, errors
        found = json.loads(lines[-1])
        assert len(ours.asked) == len(theirs.asked) == 3 * 4, "once to warm up, twice in turns"
        key = json.dumps
        assert sorted(map(key, ours.asked)) == sorted(map(key, theirs.asked))
    assert ours.asked[0]["temperature"] == 0 and ours.asked[0]["ignore_eos"] is True
    assert found["generated"] == found["peer"]["generated"] == 12
    assert len(found["seconds"]) == len(found["peer"]["seconds"]) == 2
    ratio = found["output_tok_s"] / found["peer"]["output_tok_s"]
    assert found["ratio"] == pytest.approx(ratio, abs=1e-3) and ratio > 1
    assert any(line.startswith("Ratio:") for line in lines)


def test_a_side_that_fails_ends_the_comparison() -> None:
    with scripted(words=["x"]) as ours, scripted() as theirs:
        settings = LoadSettings(base_url=ours.url, num_prompts=1, random_output_len=1)
        work = [[SimpleNamespace(prompt=f"a{BUSY}", prompt_len=1, output_len=1)]]
        side: Any = compare.ServerUnderLoad(settings, work)  # type: ignore[arg-type]
        with pytest.raises(ServerFailed, match=r"1 requests failed: .*queue is full"):
            side.run()
        assert not theirs.asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "gpt"], "expected engine, vllm or the URL of a server"),
        (["--against", "engine"], "expected a model for both sides"),
        (["demo", "--base-url", "http://x"], "a model to serve or --base-url"),
        (["--clock-model", "1"], "--clock-model: expected a model"),
        (["demo", "--clock-model", "-1"], "0 or more milliseconds"),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(words: list[str], message: str) -> None:
    status, _, errors = bench(*words)
    assert status == 1 and message in errors


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PYTHONPATH", str(jengine.__path__[0] + "/.."))
    return [sys.executable, "-c", PROGRAM]


def test_a_server_is_started_and_stopped(program: list[str]) -> None:
    with launched.running([*program, "--flag"], "test") as url:
        server = Server(Address.of(url))
        assert server.models()[0]["id"] == MODEL
    with pytest.raises(ServerFailed, match="cannot be reached"):
        server.models()


# A program that starts a server and then waits, as a benchmark waits for answers.
WAITING = """
import sys, time
from jengine.bench.serve import launched
with launched.running(sys.argv[1:], "test") as url:
    print(url, flush=True)
    time.sleep(600)
"""


def test_a_program_that_is_terminated_leaves_no_server(program: list[str]) -> None:
    command = [sys.executable, "-c", WAITING, *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        server = Server(Address.of(waiting.stdout.readline().strip()))
        assert server.models()[0]["id"] == MODEL
        waiting.terminate()
        assert waiting.wait(60) == 143
    with pytest.raises(ServerFailed, match="cannot be reached"):
        server.models()


def test_a_slow_start_is_told_of(
    program: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launched, "PATIENCE", 0.2)
    slow = program[2].replace("import sys, uvicorn", "import sys, uvicorn, time")
    slow = slow.replace("port = int", "print('loading', flush=True); time.sleep(1)\nport = int")
    with launched.running([*program[:2], slow], "test"):
        pass
    assert any("test has been starting for" in line for line in caplog.messages)
    assert any(line.endswith(": loading") for line in caplog.messages)


def test_a_server_that_does_not_start_says_why(program: list[str]) -> None:
    wanted = "test ended with status 1: .*there is no such model"
    with pytest.raises(ServerFailed, match=wanted), launched.running([*program, "fail"], "test"):
        pass
    with pytest.raises(ConfigError, match="cannot be run"), launched.running(["/no"], "test"):
        pass


def test_the_clock_tells_the_age_of_a_token() -> None:
    for vocab_size in (3, 300, 4096, 128_000):
        for moment in np.random.default_rng(0).integers(0, 10**15, 20).tolist():
            token = token_at(moment, vocab_size)
            assert 0 <= token < vocab_size
    for age in (0.0, 0.004, 0.5):
        token = token_at(5_000_000_000, 4096)
        assert age_ms(token, 5.0 + age, 4096) == pytest.approx(1e3 * age, abs=0.21)


def test_the_clock_runs_in_an_engine() -> None:
    began = time.monotonic()
    with jengine.LLM(
        "demo", executor=clock_model.IMPORT_PATH, executor_options={"step_seconds": 0.01},
        max_num_seqs=4, max_model_len=128, enable_prefix_caching=False,
    ) as llm:  # fmt: skip
        params = jengine.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        vocab_size = llm.engine.model.vocab_size
        outputs = llm.generate(["a b c", "d", "e f", "g h", "i"], params, use_tqdm=False)
    answers = [output.outputs[0].token_ids for output in outputs]
    assert [len(ids) for ids in answers] == [8] * 5
    assert answers[0] == answers[1] and answers[0] != answers[4], "a step has one time"
    times = [age_ms(token, began, vocab_size) for token in answers[0]]
    steps = -np.diff(times) % (clock_model.tokens_of_time(vocab_size) * 0.2)
    assert (steps >= 9.7).all(), "a step takes at least what was asked for"


def test_added_latency_is_counted_over_all_tokens() -> None:
    now = time.monotonic()
    moments = [int((now - age) * 1e9) for age in (0.001, 0.003, 0.020)]
    times = [time.perf_counter()] * 2
    ids = [[token_at(moments[0], 4096)], [token_at(moment, 4096) for moment in moments[1:]]]
    good: Any = SimpleNamespace(success=True, times=times, token_ids=ids)
    bad: Any = SimpleNamespace(success=False, times=times, token_ids=[[5], [5]])
    found = added(ServedLoad([good, bad], 1.0), 4096)["added_latency_ms"]
    assert found["max"] == pytest.approx(20, abs=0.5) and found["p50"] == pytest.approx(3, abs=0.5)
    good.token_ids = [[], []]
    with pytest.raises(ConfigError, match="no token ids"):
        added(ServedLoad([good], 1.0), 4096)


def test_an_order_with_a_model_starts_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []

    with scripted(root="demo") as scene:

        @contextmanager
        def serve(model: str, words: list[str]) -> Iterator[str]:
            started.append((model, words))
            yield scene.url

        monkeypatch.setattr(runs, "our_server", serve)
        found = result("demo", *SMALL, "--max-num-seqs", "8", "--api-key", "k")
        order = RunOrder(
            settings=LoadSettings(num_prompts=2, random_output_len=2),
            command="c", model="demo", words=lambda engine: sorted(engine), clock_ms=5.0,
        )  # fmt: skip
        with pytest.raises(ConfigError, match="no token ids"):
            run(order, lambda _: None)
    assert found["completed"] == 4 and "--max-num-seqs 8" in found["command"]
    assert started[0] == ("demo", ["--max-num-seqs", "8", "--api-key", "k"])
    assert started[1][1] == ["enable_prefix_caching", "executor", "executor_options"]
    assert scene.asked[-1]["return_token_ids"] is True


@pytest.mark.slow
def test_against_the_engine_without_a_server() -> None:
    with scripted(root="demo") as scene:
        settings = LoadSettings(base_url=scene.url, num_prompts=3, random_input_len=5)
        order = RunOrder(settings=settings, command="c", model="demo", against="engine", repeats=1)
        engine = {"max_num_seqs": 4, "max_model_len": 256, "enforce_eager": True}
        challenge = runs.opponent(order, settings, engine)
        found = compare.compare(compare.fixed_work(settings), "c", 1, challenge, lambda _: None)
    assert found["peer"]["generated"] == found["generated"] == 3 * 128
    assert found["peer"]["engine"].endswith("in process")
