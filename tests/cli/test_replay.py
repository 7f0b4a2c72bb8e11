"""`jengine replay`: a recording of the demo model runs again on the same kind of engine."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jengine import LLM, SamplingParams
from jengine.assembly.recording import check_fits, replay_settings
from jengine.cli.main import main
from jengine.cli.replaying import printed
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError, RequestError
from jengine.executor.recording import read_recording
from jengine.executor.replay import Difference, ReplayReport
from tests.api.engines import SMALL_DEMO

PROMPTS = ["Once upon a time", "The fox", "Once upon a time there was"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("recordings")
    with LLM("demo", **SMALL_DEMO, flight_recorder=folder) as one:
        yield one


@pytest.fixture(scope="module")
def file(llm: LLM) -> str:
    llm.generate(PROMPTS, SamplingParams(temperature=0.8, seed=1, max_tokens=12), use_tqdm=False)
    return llm.write_recording()


def test_the_same_engine_gives_the_same_tokens(llm: LLM, file: str) -> None:
    out, err, opened = io.StringIO(), io.StringIO(), []

    def same(model: str, **settings: Any) -> Any:
        opened.append((model, settings))
        return nullcontext(llm)

    terminal = Terminal(io.StringIO(), out, err)
    assert main(["replay", file], terminal=terminal, open_llm=same) == 0, err.getvalue()
    assert "36 tokens of 3 requests compared" in out.getvalue()
    assert out.getvalue().endswith("Every token is the same.\n")
    ((model, settings),) = opened
    assert model == str(llm.engine.folder) and settings["skip_tokenizer_init"]
    assert settings["num_gpu_blocks_override"] == max(llm.engine.cache.num_blocks)
    assert settings["max_num_seqs"] == 4


def test_the_settings_of_a_recording_make_such_an_engine(llm: LLM, file: str) -> None:
    recording = read_recording(Path(file))
    check_fits(recording, llm.engine.schedule, llm.engine.cache)
    settings = replay_settings(recording, {"tensor_parallel_size": 2, "model": "elsewhere"})
    assert settings["tensor_parallel_size"] == 2 and settings["model"] == "elsewhere"
    with pytest.raises(ConfigError, match="max_num_seqs: plans fit only the sizes"):
        replay_settings(recording, {"max_num_seqs": 9})
    small = replace(llm.engine.cache, num_blocks=(3,) * len(llm.engine.cache.num_blocks))
    with pytest.raises(ConfigError, match="the recording needs"):
        check_fits(recording, llm.engine.schedule, small)
    with pytest.raises(ConfigError, match="not the recorded one"):
        check_fits(recording, llm.engine.schedule, replace(small, groups=()))
    with pytest.raises(ConfigError, match="tiles of 7 tokens"):
        check_fits(recording, replace(llm.engine.schedule, prefill_tile=7), llm.engine.cache)


def test_the_report_names_what_differs(file: str) -> None:
    recording = read_recording(Path(file))
    differences = tuple(Difference(5, row, 9, 1, 2) for row in range(12))
    text = printed(recording, ReplayReport(7, 40, 12, 2, differences))
    assert "step 5, row 0, position 9: recorded token 1, now 2" in text
    assert "and 2 more requests" in text and "2 requests are left out" in text
    assert text.endswith("12 requests differ.")
    failed = ReplayReport(7, 40, 12, 0, (), "RuntimeError: broken")
    assert printed(recording, failed).endswith("A step failed: RuntimeError: broken")


def test_an_engine_without_a_recorder_says_how_to_get_one(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = llm.engine.client.core.executor  # type: ignore[attr-defined]
    monkeypatch.setattr(masks, "call_workers", masks.executor.executor.call_workers)
    with pytest.raises(RequestError, match="Create it with flight_recorder=FOLDER"):
        llm.write_recording()


def test_a_recording_of_no_steps_is_refused_before_an_engine_starts() -> None:
    with pytest.raises(ConfigError, match="flight_recorder_steps=0: expected a positive integer"):
        LLM("demo", flight_recorder="x", flight_recorder_steps=0)
