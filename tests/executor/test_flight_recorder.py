"""Recordings: what they hold, when they are written, and that a replay finds what differs."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError, EngineDead
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.executor.flight_recorder import FlightRecorder
from jengine.executor.grammar_masks import GrammarMasks
from jengine.executor.recording import Origin, Recording, read_recording
from jengine.executor.replay import ReplayReport, replay
from jengine.grammar.grammar_rows import GrammarRows
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.media_spans import MediaSpan
from jengine.outputs import StepOutput
from jengine.plan import NO_ENTRIES, NewRow, Plan, RowSampling, TokenMasks
from jengine.scheduler.draft_sources import HostDrafts
from jengine.scheduler.drafting import Drafting
from jengine.scheduler.scheduler import Scheduler
from jengine.speculative.proposer import Proposer
from tests.executor.scripted import ScriptedExecutor, ScriptedResult
from tests.grammar.letters import compiler, regex
from tests.kvcache.cache_cases import FULL
from tests.scheduler.scheduler_loop import VOCAB, TruthProposer, make_wire
from tests.scheduler.test_grammar_rows import FORCED, ruled

SLIDING = CacheGroup(CacheSpec("sliding", 1, 8, 6), (1,))
PREFIX = [(7 * position) % VOCAB for position in range(22)]
LARGE = bytes(100_000)
IMAGE = MediaSpan(0, 1, "key", "image", (1, 1, 1), (1, 1, 1), rows=LARGE)


class Failing(ScriptedExecutor):
    """Fails in the result of one step, or samples another token from a step on."""

    fails_at = wrong_from = 10**9

    def submit(self, plan: Plan) -> Any:
        result = super().submit(plan)
        if plan.step >= self.wrong_from:
            tokens = result.output.tokens.copy()
            tokens[:1] = (tokens[:1] + 1) % VOCAB
            return ScriptedResult(result.output._replace(tokens=tokens))
        return Broken(result.output) if plan.step == self.fails_at else result


class Broken(ScriptedResult):
    def result(self) -> StepOutput:
        raise RuntimeError("the device is on fire")


class Recorded:
    """A scripted engine whose steps are recorded into a folder."""

    def __init__(
        self, folder: Path, *groups: CacheGroup, steps: int = 1000, blocks: int = 65,
        proposer: Proposer | None = None, **schedule: Any,
    ) -> None:  # fmt: skip
        groups = groups or (FULL,)
        self.cache = CacheConfig(groups, 4, (blocks,) * len(groups))
        sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64}
        self.schedule = ScheduleConfig(**{**sizes, **schedule}, prefill_tile=1)
        origin = Origin("0", "/models/tiny", {}, self.schedule, self.cache)
        self.executor = Failing(self.cache, VOCAB)
        self.recorder = FlightRecorder(self.executor, origin, folder, steps)
        cache = CacheCoordinator(self.cache)
        drafting = None
        if proposer is not None:
            drafting = Drafting(HostDrafts(proposer), cache, most=3, most_rows=16, adaptive=False)
        scheduler = Scheduler(self.schedule, cache, decode_length=drafting)
        self.core = EngineCore(scheduler, self.recorder, depth=1)

    def run(self, *wires: Any) -> None:
        for wire in wires:
            self.core.add(wire)
        while self.core.has_work:
            self.core.step()

    def recording(self) -> Recording:
        return read_recording(self.recorder.write("a test"))

    def replayed(self, executor: Any = None) -> ReplayReport:
        return replay(self.recording(), executor or Failing(self.cache, VOCAB))


def test_all_steps_replay_to_the_same_tokens(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.run(*(make_wire(5 + 3 * n, f"r{n}", max_tokens=6) for n in range(6)))
    report = recorded.replayed()
    assert report.differences == () and report.problem is None
    assert report.rows == 6 and report.left_out == 0
    assert report.tokens == 36


def test_preemptions_replay_too(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, blocks=9)
    recorded.run(*(make_wire(8, f"r{n}", max_tokens=12) for n in range(3)))
    assert recorded.core.scheduler.num_preemptions
    report = recorded.replayed()
    assert report.differences == () and report.problem is None and report.left_out == 0


def test_multi_step_decodes_replay_too(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, num_scheduler_steps=4)
    recorded.run(*(make_wire(5, f"r{n}", max_tokens=9) for n in range(2)))
    report = recorded.replayed()
    assert report.differences == () and report.problem is None and report.tokens >= 18


@pytest.mark.parametrize("wrong", [0, 1, 4])
def test_steps_with_drafts_replay_too(tmp_path: Path, wrong: int) -> None:
    recorded = Recorded(tmp_path, proposer=TruthProposer(wrong))
    recorded.run(*(make_wire(5, f"r{n}", max_tokens=9 + 3 * n) for n in range(3)))
    assert any(step.plan.drafts for step in recorded.recording().steps)
    report = recorded.replayed()
    assert report.differences == () and report.problem is None and report.left_out == 0
    assert report.tokens == 36


def test_steps_with_grammars_replay_too(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.core.executor = GrammarMasks(recorded.recorder, GrammarRows(compiler(), VOCAB))
    recorded.run(ruled("a", regex(FORCED)), ruled("b"), make_wire(5, "free", max_tokens=9))
    plans = [step.plan for step in recorded.recording().steps]
    assert any(plan.masks for plan in plans) and any(plan.known for plan in plans)
    report = recorded.replayed()
    assert report.differences == () and report.problem is None and report.left_out == 0


def test_a_cached_prefix_from_before_the_recording_is_computed_first(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, steps=4)
    recorded.run(make_wire(PREFIX, "first", max_tokens=2))
    recorded.run(make_wire([*PREFIX, 5], "second", max_tokens=4))
    steps = recorded.recording().steps
    assert steps[0].plan.entries.starts[0] == 20, "the prompt begins in the cache"
    report = recorded.replayed()
    assert report.differences == () and report.problem is None
    assert report.rows == 1 and report.left_out == 0 and report.tokens == 4


def test_requests_without_their_beginning_are_left_out(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, steps=5)
    recorded.core.add(make_wire(6, "long", max_tokens=20))
    for _ in range(8):
        recorded.core.step()
    recorded.run(make_wire(4, "late", max_tokens=3))
    assert recorded.recording().dropped > 0
    recorded = Recorded(tmp_path, steps=8)
    recorded.core.add(make_wire(6, "long", max_tokens=20))
    for _ in range(8):
        recorded.core.step()
    recorded.core.add(make_wire(4, "late", max_tokens=3))
    for _ in range(5):
        recorded.core.step()
    report = recorded.replayed()
    assert (report.rows, report.left_out) == (1, 1)
    assert report.tokens == 3 and report.differences == () and report.problem is None


def test_a_window_needs_its_prefix_in_the_recording(tmp_path: Path) -> None:
    """Its first blocks are given back, so nothing could compute what comes after them."""
    recorded = Recorded(tmp_path, FULL, SLIDING, steps=4)
    recorded.run(make_wire(PREFIX, "first", max_tokens=2))
    recorded.run(make_wire([*PREFIX, 5], "second", max_tokens=4))
    assert recorded.recording().steps[0].plan.entries.starts[0] > 0
    report = recorded.replayed()
    assert (report.rows, report.left_out, report.tokens) == (0, 1, 0)
    whole = Recorded(tmp_path, FULL, SLIDING)
    whole.run(make_wire(PREFIX, "first", max_tokens=2))
    whole.run(make_wire([*PREFIX, 5], "second", max_tokens=4))
    report = whole.replayed()
    assert (report.rows, report.left_out) == (2, 0)
    assert report.differences == () and report.problem is None


def test_a_token_that_differs_is_found_where_it_first_does(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.run(make_wire(5, "a", max_tokens=6))
    other = Failing(recorded.cache, VOCAB)
    other.wrong_from = 3
    (difference,) = recorded.replayed(other).differences
    assert (difference.step, difference.row, difference.position) == (3, 0, 8)
    assert difference.replayed == (difference.recorded + 1) % VOCAB


def test_a_failing_step_writes_what_led_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = Recorded(tmp_path / "not there yet")
    recorded.executor.fails_at = 3
    with pytest.raises(EngineDead, match="on fire"), caplog.at_level(logging.ERROR):
        recorded.run(make_wire(5, "a", max_tokens=9))
    (file,) = (tmp_path / "not there yet").iterdir()
    assert str(file) in caplog.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "prompts are private"
    recording = read_recording(file)
    assert recording.reason == "RuntimeError: the device is on fire"
    failed = [step for step in recording.steps if step.problem]
    assert [step.plan.step for step in failed] == [3]
    again = Failing(recorded.cache, VOCAB)
    again.fails_at = 3
    assert replay(recording, again).problem == "RuntimeError: the device is on fire"
    assert replay(recording, Failing(recorded.cache, VOCAB)).problem is None


def test_a_full_disk_does_not_hide_the_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    recorded = Recorded(tmp_path / "file")
    recorded.executor.fails_at = 1
    with pytest.raises(EngineDead, match="on fire"):
        recorded.run(make_wire(5, "a"))
    assert "cannot be written" in caplog.text


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path, steps=7)
    recorded.run(make_wire(5, "a", max_tokens=30))
    recording = recorded.recording()
    assert len(recording.steps) == 7 and recording.dropped == 23
    monkeypatch.setattr("jengine.executor.flight_recorder.MOST_BYTES", 10_000)
    recorded = Recorded(tmp_path)
    recorded.run(make_wire(5, "a", max_tokens=30))
    assert 1 < len(recorded.recording().steps) < 6


@pytest.mark.parametrize(
    "holding",
    [
        {"masks": TokenMasks(b"", b"", LARGE)},
        {"new_rows": [NewRow(0, b"", 1, RowSampling(), embeds=LARGE)]},
        {"new_rows": [NewRow(0, LARGE, 1, RowSampling())]},
        {"new_rows": [NewRow(0, b"", 1, RowSampling(), media=[IMAGE])]},
        {"encode": [IMAGE]},
        {"encode": [msgspec.structs.replace(IMAGE, values=LARGE, rows=b"")]},
    ],
    ids=lambda holding: next(iter(holding)),
)
def test_a_large_input_counts_towards_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holding: dict[str, Any]
) -> None:
    monkeypatch.setattr("jengine.executor.flight_recorder.MOST_BYTES", 3 * len(LARGE))
    recorded = Recorded(tmp_path)
    monkeypatch.setattr(recorded.executor, "submit", lambda _: None)
    for step in range(5):
        recorded.recorder.submit(Plan(step, NO_ENTRIES, 0, **holding))
    assert [step.plan.step for step in recorded.recording().steps] == [3, 4]


def test_it_is_written_on_demand_and_forgotten_with_the_weights(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.run(make_wire(5, "a"))
    answers = recorded.core.call_workers(
        "write_recording", encoded_arguments("write_recording", {})
    )
    (path,) = decoded_answers("write_recording", answers)
    assert len(read_recording(Path(path)).steps) == 4
    recorded.core.update_weights({})
    assert recorded.recording().steps == []


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ConfigError, match="expected a recording"):
        read_recording(tmp_path / "text")
    with pytest.raises(ConfigError, match="No such file"):
        read_recording(tmp_path / "missing")


def test_sampled_tokens_have_an_item_per_entry_that_wants_them(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.run(make_wire(20, "a", max_tokens=2), make_wire(4, "b", max_tokens=2))
    for step in recorded.recording().steps:
        assert step.sampled is not None
        assert len(step.sampled) == np.count_nonzero(step.plan.entries.wants_tokens)
