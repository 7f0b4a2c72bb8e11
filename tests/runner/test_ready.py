"""What an engine does before it is ready: in which order, and which programs have run then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from jengine.assembly.process_checks import starts_early
from jengine.assembly.sizes.device_defaults import DEVICE_DEFAULTS
from jengine.runner import build
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.programs.warm_up import MOST_ON_ACCELERATORS, compile_threads
from tests.api.engines import answers, random_prompts
from tests.models.tiny_models import write_tiny_native

SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True, "max_model_len": 64, "max_num_seqs": 4, "max_logprobs": 2,
    "max_num_batched_tokens": 32,
    "compilation_config": {"decode_rows": [2, 4], "prefill_tokens": [32], "wait_for": "all",
                           "variants": ["greedy", "adjusted", "scored"]},
}  # fmt: skip
PARAMS = SamplingParams(
    temperature=1.0, seed=3, max_tokens=4, ignore_eos=True, presence_penalty=0.5, logprobs=1,
    prompt_logprobs=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(tmp_path_factory.mktemp("model"), "llama", num_hidden_layers=1)


@pytest.mark.slow
def test_everything_is_compiled_before_the_cache_takes_the_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    compile_step, make_state = StepCompiler.compile, LoadedModel.make_state

    def compiling(self: StepCompiler, *key: Any, **how: Any) -> Any:
        order.append("compile")
        return compile_step(self, *key, **how)

    def making(self: LoadedModel) -> None:
        order.append("state")
        make_state(self)

    monkeypatch.setattr(StepCompiler, "compile", compiling)
    monkeypatch.setattr(LoadedModel, "make_state", making)
    with jengine.LLM(folder, **SETTINGS) as llm:
        assert len(llm.ledger.entries) == order.count("compile") > 4
    assert order == ["compile"] * order.count("compile") + ["state"]


def test_every_program_has_run_twice_where_graphs_are_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = random_prompts(3, 40)
    with jengine.LLM(folder, **SETTINGS) as llm:
        assert {one.executions for one in llm.ledger.entries.values()} == {0}
        expected = answers(llm.generate(prompts, PARAMS))
    monkeypatch.setattr(build, "records_graphs", lambda platform: True)
    with jengine.LLM(folder, **SETTINGS) as llm:
        assert min(one.executions for one in llm.ledger.entries.values()) >= 2
        assert llm.ledger.hits == 0
        assert answers(llm.generate(prompts, PARAMS)) == expected


def test_an_accelerator_compiles_a_few_at_once_and_serves_when_all_is_compiled() -> None:
    assert compile_threads("gpu") <= MOST_ON_ACCELERATORS
    assert not DEVICE_DEFAULTS["gpu"].early_start and DEVICE_DEFAULTS["cpu"].early_start
    steps: Any = type("Steps", (), {"early_start": True})()
    assert not starts_early(steps, [0], chosen=False, usual=False)
    assert starts_early(steps, [0], chosen=True, usual=False)


def test_nothing_is_measured_on_the_device_beside_steps() -> None:
    gpu: Any = type("Gpu", (), {"platform": "gpu", "compute_capability": "9.0"})()
    measured, beside = (CompilerChoices().options(gpu, 8, measures=one) for one in (True, False))
    assert measured is not None and beside == {**measured, "xla_gpu_autotune_level": 0}
