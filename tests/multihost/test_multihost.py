"""Several real processes answer as one does, find what differs, and never hang when one is lost."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from jengine import SamplingParams
from jengine.executor.multihost.ending import EXIT_STATUS
from tests.api import grammar_requests
from tests.api.draft_heads import write_heads
from tests.api.engines import answers, tiny_engine
from tests.media import encoder_prompts
from tests.models.tiny_models import write_tiny_native
from tests.multihost.launch import launched
from tests.multihost.program import GREEDY, MULTIHOST, OFFLOADED, PARAMS, PROMPTS, in_turn
from tests.server.serving import letters

SECONDS = 240  # for a scenario, on cores that are shared with others
# Named within 10 s: silence is noticed after 8 s here, a closed connection at once.
NAMED_WITHIN = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and beside it another one of the same shapes."""
    base = tmp_path_factory.mktemp("models")
    for name, seed in (("llama", 0), ("other", 1)):
        write_tiny_native(
            base / name, "llama", seed=seed, max_position_embeddings=1024, vocab_size=128
        )
    return base / "llama"


@pytest.fixture(scope="module")
def on_one(folder: Path) -> list[Any]:
    with tiny_engine(folder, max_model_len=256) as llm:
        return answers(llm.generate(PROMPTS, PARAMS))


def said(scenario: str, folder: Path, processes: int = 2, devices: int = 1) -> dict[str, Any]:
    """What the processes say in a scenario that ends well: all the same."""
    with launched(scenario, folder, processes, devices) as launch:
        assert launch.wait(SECONDS) == [0] * processes, str(launch)
        first, *others = [process.said() for process in launch.processes]
    # The first process knows of all, the others of the first and themselves.
    if any("ranks" in line for line in first):
        known = [line.pop("ranks") for (line,) in (first, *others)]
        assert known == [list(range(processes)), *([0, i] for i in range(1, processes))]
    assert all(other == first for other in others)
    return {name: value for line in first for name, value in line.items()}


SIZES = [
    pytest.param(2, 1, marks=pytest.mark.slow),
    pytest.param(2, 2, marks=pytest.mark.slow),
    pytest.param(4, 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("processes", "devices"), SIZES)
def test_same_tokens_as_one_process(
    folder: Path, on_one: list[Any], processes: int, devices: int
) -> None:
    found = said("same", folder, processes, devices)
    assert found["tokens"] == found["again"] == on_one
    assert found["hits"] > 0
    assert found["version"] == 1
    assert len(found["held"]) == processes
    assert len(set(found["held"])) == 1
    assert found["zeroed"] == [[[0, 0, 0]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "family"),
    [
        ("encoding", "qwen2_vl"),
        ("encoding", "bart"),
        ("encoding_stages", "qwen2_vl"),
        ("encoding_stages", "gemma3"),
    ],
)
def test_encoders_of_every_process(scenario: str, family: str, tmp_path: Path) -> None:
    folder = encoder_prompts.write(tmp_path, family)
    greedy = SamplingParams(**GREEDY)
    with tiny_engine(folder, max_model_len=48) as llm:
        expected = answers(llm.generate(encoder_prompts.of(family), greedy))
    assert said(scenario, folder)["found"] == expected


@pytest.mark.slow
def test_nodes_with_own_compile_caches_do_without(
    folder: Path, on_one: list[Any], tmp_path: Path
) -> None:
    """At a second start one would find its programs, and the others would compile."""
    for _ in range(2):
        with launched("same", folder, caches=tmp_path) as launch:
            assert launch.wait(SECONDS) == [0, 0], str(launch)
            for process in launch.processes:
                assert process.said()[0]["tokens"] == on_one
                assert "The compile cache is off" in process.read()[1]
        assert not list(tmp_path.rglob("*-cache"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["drafting", "device_drafting"])
def test_same_tokens_with_drafts(folder: Path, on_one: list[Any], scenario: str) -> None:
    found = said(scenario, folder)
    assert found["tokens"] == found["again"] == on_one
    assert found["drafted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["drafting", "suffixes", "headed"])
def test_drafts_for_a_model_with_recurrent_layers(tmp_path: Path, scenario: str) -> None:
    sizes = {"max_position_embeddings": 1024, "vocab_size": 128}
    model = write_tiny_native(tmp_path / "bamba", "bamba", **sizes)
    (tmp_path / "heads").mkdir()
    write_heads(tmp_path / "heads", "eagle3", model)
    with tiny_engine(model, max_model_len=256, mamba_block_size=32) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
    found = said(scenario, model)
    assert found["tokens"] == found["again"] == expected
    assert found["drafted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "devices"),
    [("offloading", 1), ("offloading_stages", 1), ("offloading_stages", 2)],
)
def test_blocks_come_back_from_the_memory_of_every_host(
    folder: Path, scenario: str, devices: int
) -> None:
    with tiny_engine(folder, max_model_len=256, num_gpu_blocks_override=18) as llm:
        plain = in_turn(llm, OFFLOADED + OFFLOADED)
    assert sum(plain["cached"]) <= 32, "the cache of the devices is large enough for all"
    found = said(scenario, folder, devices=devices)
    assert found["tokens"] == plain["tokens"]
    assert found["together"] == plain["tokens"][:4]
    assert found["cached"] == [0] * 4 + [96, 64, 96, 80]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_stages_of_layers(folder: Path, on_one: list[Any], processes: int, devices: int) -> None:
    found = said("staged", folder, processes, devices)
    assert found["tokens"] == found["again"] == on_one
    assert found["hits"] > 0
    assert found["version"] == 1
    assert found["zeroed"] == [[[0, 0, 0]]]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_tokens_are_divided_among_processes(folder: Path, on_one: list[Any], devices: int) -> None:
    found = said("prefill_context", folder, devices=devices)
    assert found["tokens"] == found["again"] == on_one
    assert found["hits"] > 0


@pytest.mark.slow
def test_answers_follow_their_grammars(folder: Path) -> None:
    letters().hf.save_pretrained(folder)
    with tiny_engine(folder, tokenizer=folder, max_model_len=256) as llm:
        expected = grammar_requests.texts(llm)
    assert said("ruled", folder)["texts"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("time", range(2))
def test_the_same_tokens_every_time(folder: Path, on_one: list[Any], time: int) -> None:
    """What goes wrong between processes goes wrong now and then."""
    found = said("same", folder)
    assert found["tokens"] == found["again"] == on_one


@pytest.mark.slow
def test_a_program_with_arrays_and_a_mesh_of_its_own(folder: Path, on_one: list[Any]) -> None:
    found = said("joined", folder, 2, 2)
    assert found["tokens"] == found["again"] == found["alone"] == on_one
    assert found["total"] == 16
    assert found["captured"] > 0
    assert found["version"] == 1


@pytest.mark.slow
def test_every_process_sleeps_and_wakes(folder: Path, on_one: list[Any]) -> None:
    found = said("asleep", folder)
    assert found["tokens"] == found["again"] == found["reloaded"] == on_one
    assert found["held"] == [[0, 0], [0, 0]] and found["dropped"] and found["awake"]


@pytest.mark.slow
def test_differences_are_named_and_the_engine_goes_on(folder: Path, on_one: list[Any]) -> None:
    with launched("differing", folder) as launch:
        assert launch.wait(SECONDS) == [0, 0], str(launch)
        said = [process.said()[0] for process in launch.processes]
    for found in said:
        assert "process 1 differs from process 0" in found["other_prompts"]
        assert "differ first at 'request 3'" in found["other_prompts"]
        assert (
            "it has 'programs' among its calls where the others have 'memory'"
            in found["other_methods"]
        )
        assert "it has 3 requests where the others have 4" in found["fewer"]
        assert "weights differ first at 'layers.1.mlp.down.weight'" in found["other_weights"]
        assert "Nothing was changed" in found["other_weights"]
        assert (
            "is reading or replacing parameters while the others are generating"
            in (found["other_calls"])
        )
        assert found["version"] == 0
        assert found["tokens"] == on_one


@pytest.mark.slow
def test_differences_are_found_while_the_engine_is_built(folder: Path) -> None:
    found = said("at_start", folder)
    assert "its settings differ first at 'schedule'" in found["settings"]
    assert "process 1 differs from process 0: its weights differ first at" in found["weights"]


@pytest.mark.slow
def test_one_that_leaves_is_named_when_it_is_needed(folder: Path) -> None:
    with launched("idle_then_leaves", folder) as launch:
        assert launch.wait(SECONDS) == [0, 0], str(launch)
        found = launch.processes[0].said()
    assert found == [
        {"error": f"process 1 on {socket.gethostname()} has left this engine: it was shut down"}
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_in_one_process(folder: Path, on_one: list[Any], rank: int) -> None:
    with launched("interrupted", folder) as launch:
        launch.until(lambda: all(len(p.said()) > 3 for p in launch.processes), SECONDS)
        launch.processes[rank].handle.send_signal(signal.SIGINT)
        assert launch.wait(SECONDS) == [0, 0], str(launch)
        last = [process.said()[-1] for process in launch.processes]
    assert last[rank]["reasons"] == ["interrupt"]
    assert last[1 - rank]["reasons"] == ["abort"] * len(PROMPTS)
    for found in last:
        assert found["tokens"] == on_one
        assert found["running"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_is_named_and_everyone_ends(folder: Path, rank: int) -> None:
    with launched("streaming", folder) as launch:
        launch.until(lambda: all(len(p.said()) > 3 for p in launch.processes), SECONDS)
        lost, other = launch.processes[rank], launch.processes[1 - rank]
        lost.handle.kill()
        other.assert_ends_without(
            rank, NAMED_WITHIN, f"process {rank} on {socket.gethostname()} was lost"
        )
        assert lost.handle.wait(60) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_process_is_named_and_everyone_ends(folder: Path, rank: int) -> None:
    with launched("streaming", folder) as launch:
        launch.until(lambda: all(len(p.said()) > 3 for p in launch.processes), SECONDS)
        lost, other = launch.processes[rank], launch.processes[1 - rank]
        lost.handle.send_signal(signal.SIGSTOP)
        assert other.handle.wait(NAMED_WITHIN) == EXIT_STATUS, str(launch)
        name = f"process {rank} on {socket.gethostname()}"
        silence = f"{name} showed no sign of life for {MULTIHOST['silence']} s"
        assert silence in other.read()[1]
        # When it goes on it finds that the other has ended.
        lost.handle.send_signal(signal.SIGCONT)
        lost.assert_ends_without(1 - rank, NAMED_WITHIN, f"process {rank} stops: ")
