"""`jengine chat`: the conversation, its commands, and what interrupts and refusals leave behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jengine.cli import chat
from jengine.cli.conversation import ReadLine, read_message
from jengine.cli.terminal import Terminal
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from jengine.sampling_params import SamplingParams
from jengine.text.chat_template import render_chat
from tests.cli.fake_llm import FakeLLM, run
from tests.server.serving import letters


def lines_of(text: str) -> ReadLine:
    lines = iter(text.splitlines())

    def read(prompt: str) -> str:
        for line in lines:
            return line
        raise EOFError

    return read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "hello"),
        ("one \\\ntwo", "one \ntwo"),
        ("one\\\n", "one"),
        ('"""one\n\ntwo"""', "one\n\ntwo"),
        ('"""\none\n  two\n"""\nnext', "one\n  two"),
        ('"""one"""', "one"),
        ('"""cut\nshort', "cut\nshort"),
        ('"""\n', ""),
    ],
)
def test_messages_may_span_lines(text: str, message: str) -> None:
    assert read_message(lines_of(text)) == message


def test_lines_from_a_pipe_are_answered_in_one_conversation() -> None:
    llm = FakeLLM(scripts=[["Hi", "!"], ["Bye."]])
    result = run(llm, "chat", "demo", "--system-prompt", "Be kind.", stdin="hello\n\n bye \n")
    assert (result.status, result.out, result.err) == (0, "Hi!\nBye.\n", "")
    assert llm.asked[1][0] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "bye"},
    ]
    assert llm.asked[0][1].max_tokens is None


def test_one_quick_message() -> None:
    llm = FakeLLM()
    result = run(llm, "chat", "demo", "-q", "hello", "--temperature", "0", stdin="ignored\n")
    assert (result.status, result.out) == (0, "Hello there\n")
    assert len(llm.asked) == 1
    settings = llm.opened[0][1]
    compilation = {"variants": ["greedy"]}
    assert settings == {"max_num_seqs": 1, "compilation_config": compilation}


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


class Templated(FakeLLM):
    """Renders an endless template, as that of a checkpoint may be."""

    def stream_chat(self, messages: Any, params: SamplingParams) -> Iterator[RequestOutput]:
        if "fine" not in messages[-1]["content"]:
            render_chat(letters(), messages, chat_template=ENDLESS)
        return super().stream_chat(messages, params)


def test_an_endless_template_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "RENDER_SECONDS", 0.2)
    result = run(Templated(), "chat", "demo", stdin="hello\nfine\n")
    assert (result.status, result.out) == (1, "Hello there\n")
    assert "not answered: the chat template took longer than 0.2 seconds" in result.err
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_refused_quick_message_is_an_error() -> None:
    result = run(FakeLLM(scripts=[[RequestError("too long")]]), "chat", "demo", "-q", "hello")
    assert (result.status, result.err) == (1, "jengine: error: too long\n")


def test_commands(tmp_path: Path) -> None:
    llm = FakeLLM()
    file = tmp_path / "chat.json"
    commands = f"/system Be brief.\nhello\n/stats\n/save {file}\n/reset\nagain\n/exit\nnever\n"
    result = run(llm, "chat", "demo", stdin=commands)
    assert result.status == 0
    assert len(llm.asked) == 2
    assert json.loads(file.read_text()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Hello there"},
    ]
    assert [message["content"] for message in llm.asked[1][0]] == ["Be brief.", "again"]
    assert "Last answer: 2 tokens" in result.err
    assert "Engine: all is well" in result.err


def test_wrong_commands_are_not_sent_to_the_model(tmp_path: Path) -> None:
    llm = FakeLLM()
    text = f"/rest\n/save\n/save {tmp_path}/no/such/folder\n/save ~nobody-here/x\n/help\n /sent\n"
    result = run(llm, "chat", "demo", stdin=text)
    assert "Did you mean '/reset'?" in result.err
    assert result.err.count("Not saved: ") == 2
    assert "/system TEXT" in result.err
    assert [messages[-1]["content"] for messages, _ in llm.asked] == ["/sent"]


def test_an_interrupted_answer_stays_and_the_chat_goes_on() -> None:
    llm = FakeLLM(scripts=[["Once", KeyboardInterrupt()], ["More."]])
    result = run(llm, "chat", "demo", stdin="story\ngo on\n")
    assert result.out == "Once\nMore.\n"
    assert "stopped" in result.err
    assert [message["content"] for message in llm.asked[1][0]] == ["story", "Once", "go on"]
    assert llm.closed_streams == 2


def test_an_interrupt_before_the_first_word_drops_the_message() -> None:
    llm = FakeLLM(scripts=[[KeyboardInterrupt()], ["More."]])
    result = run(llm, "chat", "demo", stdin="story\n/stats\nagain\n")
    assert [message["content"] for message in llm.asked[1][0]] == ["again"]
    assert "the message is dropped" in result.err and "what was said stays" not in result.err
    assert "Last answer: no token in 0.0" in result.err


def test_an_interrupt_right_after_the_answer_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    presses = iter([KeyboardInterrupt, None, None])

    def say(self: Terminal, line: str = "") -> None:
        if press := next(presses):
            raise press
        self.write(line + "\n")

    monkeypatch.setattr(Terminal, "say", say)
    llm = FakeLLM(scripts=[["Hi."], ["More."]])
    result = run(llm, "chat", "demo", stdin="hello\ngo on\n")
    assert [message["content"] for message in llm.asked[1][0]] == ["hello", "Hi.", "go on"]
    assert result.status == 0 and "dropped" not in result.err


def test_a_complete_answer_is_not_called_stopped() -> None:
    llm = FakeLLM(scripts=[["Hi.", "", KeyboardInterrupt()]])

    def finished(*_: object, **__: object) -> Iterator[RequestOutput]:
        yield llm._output("0", "hello", ["Hi."])
        raise KeyboardInterrupt

    llm._stream = finished  # type: ignore[method-assign]
    result = run(llm, "chat", "demo", stdin="hello\n")
    assert (result.out, result.err) == ("Hi.\n", "")


def test_a_full_context_is_explained_and_the_chat_goes_on() -> None:
    full = RequestError("the prompt has 120 tokens, the context 100.")
    llm = FakeLLM(scripts=[["Hi."], [full], ["Yes."]])
    result = run(llm, "chat", "demo", stdin="one\ntwo\n/reset\nthree\n")
    assert result.out == "Hi.\nYes.\n"
    assert "120 tokens, the context 100. Type /reset to start afresh." in result.err
    assert [message["content"] for message in llm.asked[2][0]] == ["three"]
    assert result.status == 1


@pytest.mark.parametrize(
    ("context", "message"), [(7, "the context of 7 tokens is full; /reset"), (50, "--max-tokens")]
)
def test_answers_that_are_cut_off_say_why(context: int, message: str) -> None:
    llm = FakeLLM(finish_reason="length", max_model_len=context)
    result = run(llm, "chat", "demo", "-q", "hello", "--max-tokens", "2")
    assert message in result.err


def test_stats_after_each_answer() -> None:
    result = run(FakeLLM(), "chat", "demo", "--stats", stdin="hello\n")
    assert "tokens/s, prompt of 5 tokens)" in result.err


INTERACTIVE = """
import fcntl, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # whose Ctrl-C this process gets
sys.path.insert(0, {root!r})
from jengine.cli.main import main
from tests.cli.fake_llm import FakeLLM

class Slow(FakeLLM):
    def _stream(self, prompt, params):
        for output in super()._stream(prompt, params):
            yield output
            time.sleep(0.01)

sys.exit(main(["chat", "demo"], open_llm=Slow(scripts=[["word "] * 10_000]).open))
"""


@pytest.mark.parametrize("leaving", [b"\x04", b"\x03"])
@pytest.mark.slow
def test_at_a_terminal_control_c_stops_the_answer_and_leaves_when_pressed_twice(
    leaving: bytes,
) -> None:
    root = str(Path(__file__).parents[2])
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", INTERACTIVE.format(root=root)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    read_until(ours, b">>> ")
    os.write(ours, b"hello\n")
    read_until(ours, b"word word")
    os.write(ours, b"\x03")
    read_until(ours, b"stopped", b">>> ")
    os.write(ours, b"/stats\n")
    read_until(ours, b"tokens until it was stopped, first after", b">>> ")
    press_at_the_prompt(ours, b"\x03")  # meant for an answer, a moment too late
    read_until(ours, b"Ctrl-C again or Ctrl-D leaves", b">>> ")
    os.write(ours, b"hello\n")
    read_until(ours, b"word word")
    os.write(ours, b"\x03")
    read_until(ours, b"stopped", b">>> ")
    press_at_the_prompt(ours, leaving)
    if leaving == b"\x03":
        read_until(ours, b"again", b">>> ")
        press_at_the_prompt(ours, leaving)
    assert process.wait(timeout=60) == 0
    os.close(ours)


def press_at_the_prompt(terminal: int, key: bytes) -> None:
    """Press a key as a person would: after Python has begun to wait for it.

    A Ctrl-C that comes between readline's prompt and its wait is noticed at the next key only.
    """
    time.sleep(0.5)
    os.write(terminal, key)


def read_until(terminal: int, *wanted: bytes, seconds: float = 60) -> None:
    """Read until these texts have appeared, in this order."""
    pattern = re.compile(b".*".join(map(re.escape, wanted)), re.DOTALL)
    seen, end = b"", time.monotonic() + seconds
    while not pattern.search(seen):
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, f"{wanted!r} never came; seen: {seen!r}"
        seen += os.read(terminal, 4096)
