"""Bars for people only; one line where a start takes long."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from jengine.assembly import progress
from jengine.assembly.progress import explained_if_slow, progress_factory


class Screen:
    """A terminal that keeps what is written."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def test_no_bar_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (None, False):
        with progress_factory(wanted)(total=3, desc="Loading weights") as bar:
            bar.update(3)
    assert capsys.readouterr().err == ""


def test_a_bar_disappears_when_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    with progress_factory(None)(total=3, desc="Compiling steps") as bar:
        bar.update(3)
    assert "Compiling steps" in screen.text
    last = screen.text.split("\r")[-1]
    assert last.strip() == "" and "\n" not in screen.text


def test_a_bar_that_was_asked_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    with progress_factory(True)(total=3, desc="Processed prompts") as bar:
        bar.set_postfix_str("output: 5.00 toks/s", refresh=False)
        bar.update(3)
    assert "100%" in screen.text.split("\r")[-1] and "toks/s" in screen.text.split("\r")[-1]


def test_a_bar_that_was_asked_for_is_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with progress_factory(True)(total=3, desc="Processed prompts", miniters=1) as bar:
        for _ in range(3):
            bar.update(1)
    lines = capsys.readouterr().err.splitlines()
    assert "100%" in lines[-1] and any("33%" in line for line in lines)
    assert all(line.startswith("Processed prompts") for line in lines)


def test_a_bar_for_nothing_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    with progress_factory(None)(total=0, desc="Compiling steps"):
        pass
    assert screen.text == ""


def test_a_slow_start_is_explained_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SLOW", 0.02)
    with explained_if_slow(lambda: "this takes a while"):
        while not (err := capsys.readouterr().err):
            time.sleep(0.005)
    assert err == "this takes a while\n"
    with explained_if_slow(lambda: "not said", wanted=False):
        time.sleep(0.04)
    monkeypatch.setattr(progress, "SLOW", 600)
    with explained_if_slow(lambda: "not said"):
        (timer,) = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    timer.join(60)
    assert not timer.is_alive(), "it is not said later either"
    assert capsys.readouterr().err == ""
