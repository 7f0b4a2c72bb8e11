"""`jengine chat URL`: the same conversation with a model that a server has."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.fake_llm import FakeLLM, Result, run
from tests.cli.test_chat import read_until
from tests.client.scripted_server import BROKEN, BUSY, CUT, MODEL, REFUSED, scripted


def chat(*words: str, stdin: str = "") -> Result:
    llm = FakeLLM()
    result = run(llm, "chat", *words, stdin=stdin)
    assert not llm.opened, "an engine was started"
    return result


def test_a_conversation(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    commands = f"/system Be brief.\nhello\n/stats\nbye\n/save {file}\n"
    with scripted() as scene:
        words = ["--temperature", "0", "--max-tokens", "2", "--stop", "x", "--seed", "5", "--stats"]
        result = chat(scene.url, *words, stdin=commands)
    assert result.status == 0, result.err
    assert result.out == " one two\n one two\n"
    assert "2 tokens, first after" in result.err and "prompt of 7 tokens" in result.err
    assert f"Engine: 0 requests at {scene.url}" in result.err
    first, second = scene.asked
    assert first == {
        "model": MODEL, "stream": True, "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"},
        ],
        "max_tokens": 2, "temperature": 0.0, "stop": ["x"], "seed": 5,
    }  # fmt: skip
    assert [message["role"] for message in second["messages"]] == [
        "system", "user", "assistant", "user"
    ]  # fmt: skip
    assert json.loads(file.read_text())[2] == {"role": "assistant", "content": " one two"}


def test_reasoning_is_shown_beside_the_answer_and_not_sent_again() -> None:
    with scripted(thoughts=["let me", " see"]) as scene:
        result = chat(scene.url, stdin="hello\nbye\n")
    assert result.out == " one two three\n one two three\n"
    assert result.err.startswith("let me see\n\n")
    assert scene.asked[1]["messages"][1]["content"] == " one two three"


def test_failures_do_not_end_the_conversation() -> None:
    with scripted() as scene:
        lines = [f"a{REFUSED}", f"b{BUSY}", f"c{BROKEN}", f"d{CUT}", "fine"]
        result = chat(scene.url, stdin="\n".join(lines) + "\n")
    assert result.status == 1
    for words in ("this prompt is refused", "queue is full Try again", "out of luck Try again"):
        assert words in result.err
    assert "engine died Try again." in result.err
    assert result.out.endswith(" one two three\n")
    assert [message["content"] for message in scene.asked[-1]["messages"]] == ["fine"]


def test_an_answer_that_is_cut_off_says_why() -> None:
    with scripted(max_model_len=9) as scene:
        full = chat(scene.url, "-q", "hello", "--max-tokens", "2")
        assert "the context of 9 tokens is full" in full.err
        scene.max_model_len = None
        assert "cut off at 2 tokens" in chat(scene.url, "-q", "hi", "--max-tokens", "2").err


def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(key="secret") as scene:
        refused = chat(scene.url, "-q", "hello")
        assert refused.status == 1 and "--api-key or in OPENAI_API_KEY" in refused.err
        assert chat(scene.url + "/v1", "-q", "hello", "--api-key", "secret").status == 0
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert chat(scene.url, "-q", "hello").out == " one two three\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-model-len", "5"], "--max-model-len: the server at http"),
        (["--model-name", "other"], "--model-name other: "),
        (["--top-p", "3"], "top_p"),
    ],
)
def test_wrong_flags(words: list[str], message: str) -> None:
    with scripted() as scene:
        result = chat(scene.url, *words, stdin="hello\n")
    assert result.status == 1 and message in result.err and not scene.asked


def test_flags_of_a_server_need_a_url() -> None:
    result = chat("demo", "--api-key", "x", "-q", "hello")
    assert result.status == 1 and "--api-key: expected with a URL" in result.err


def test_a_server_that_is_not_there() -> None:
    with scripted() as scene:
        url = scene.url
    result = chat(url, "-q", "hello")
    assert result.status == 1 and f"{url} cannot be reached" in result.err


INTERACTIVE = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # whose Ctrl-C this process gets
from jengine.cli.main import main
status = main(["chat", sys.argv[1]])
loaded = [name for name in ("jax", "numpy", "transformers") if name in sys.modules]
print(f"loaded {loaded}")
sys.exit(status)
"""


def test_control_c_stops_the_answer_at_the_server_and_no_jax_is_loaded() -> None:
    with scripted(seconds_per_token=0.01, words=[" word"] * 10_000) as scene:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", INTERACTIVE, scene.url],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        os.close(theirs)
        read_until(ours, b"Talking with scripted at http", b">>> ")
        os.write(ours, b"hello\n")
        read_until(ours, b"word word")
        os.write(ours, b"\x03")
        read_until(ours, b"stopped", b">>> ")
        end = time.monotonic() + 60
        while not scene.disconnects:
            assert time.monotonic() < end, "the server was never told"
            time.sleep(0.01)
        os.write(ours, b"\x04")
        read_until(ours, b"loaded []")
        assert process.wait(timeout=60) == 0
        os.close(ours)
