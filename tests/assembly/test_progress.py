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
    for wanted in (None, True, False):
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
