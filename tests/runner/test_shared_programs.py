"""Engines of one process share the programs that are equal, and no others."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakValueDictionary

import pytest

from jengine import SamplingParams
from jengine.runner.programs.compiler import StepCompiler
from sharding import shared
from tests.api.engines import tiny_engine
from tests.models.tiny_models import write_tiny_native

FIVE = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
PROMPT = [list(range(3, 20))]
# Each differs from the first by one setting of the engine or of the model's config.json.
# fmt: off
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "xla": {"attention_backend": "xla"},
    "int8": {"quantization": "int8"},
    "bfloat16": {"dtype": "bfloat16"},
    "cache": {"kv_cache_dtype": "int8"},
    "blocks": {"block_size": 32},
    "rows": {"max_num_seqs": 4},
    "length": {"max_model_len": 512},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
               "compilation_config": {"decode_rows": [24]}},
    "adapters": {"enable_lora": True, "max_lora_rank": 8},
    "size": {"num_gpu_blocks_override": 40},
}
# fmt: on
MODELS: dict[str, dict[str, Any]] = {
    "epsilon": {"rms_norm_eps": 1e-3},
    "rope": {"rope_theta": 77.0},
    "activation": {"hidden_act": "gelu"},
}
SIZES = {"max_model_len": 256, "num_gpu_blocks_override": 64}


def opened(folder: Path, **settings: Any) -> Any:
    return tiny_engine(folder, **{**SIZES, **settings})


def compiler_of(llm: Any) -> StepCompiler:
    return llm.engine.loaded.programs.compiler


def answer(llm: Any) -> tuple[list[int], Any]:
    out = llm.generate(PROMPT, SamplingParams.clone(FIVE))[0].outputs[0]
    return out.token_ids, out.cumulative_logprob


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept yet, and nothing is kept for other tests."""
    monkeypatch.setattr(shared, "_KEPT", WeakValueDictionary())


def test_equal_engines_run_the_same_programs_on_their_own_weights(
    folder: Path, tmp_path: Path, alone: None
) -> None:
    other = write_tiny_native(tmp_path, "llama", seed=1)
    llms = [opened(other)]
    expected = answer(llms[0])
    closed(llms)
    assert not shared._KEPT  # freed with its engine
    llms = [opened(folder)]
    own = answer(llms[0])
    llms.append(opened(other))
    assert answer(llms[1]) == expected != own
    assert answer(llms[0]) == own
    compiled = [one.engine.loaded.programs._compiled for one in llms]
    assert all(compiled[0][key] is one for key, one in compiled[1].items())
    assert compiled[0].keys() == compiled[1].keys()
    kept = len(shared._KEPT)
    del compiled
    closed(llms[:1])
    del llms[0]
    gc.collect()
    assert len(shared._KEPT) == kept  # the second has them
    closed(llms)
    assert not shared._KEPT


def closed(llms: list[Any]) -> None:
    """Close these, and forget those of the list."""
    while llms:
        llms.pop().shutdown()
    gc.collect()


class Uncompiled:
    """Stands for a program in engines that are only compared."""

    def memory_analysis(self) -> None: ...


@pytest.mark.parametrize("draws", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_only_equal_programs_are_shared(
    tmp_path: Path, alone: None, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair of engines with one setting changed, and of some with several: programs with equal
    keys are of equal text, and engines with equal settings have equal keys."""
    monkeypatch.setattr(StepCompiler, "_compiled", lambda *_: Uncompiled())
    chosen, names = Random(draws), [*ENGINES, *MODELS]
    changes = [(name,) for name in names]
    changes += [tuple(chosen.sample(names, chosen.randint(2, 4))) for _ in range(draws)]
    keys = dict[Any, list[StepCompiler]]()
    forwards = list[Any]()
    for at, each in enumerate([*changes, changes[0]]):
        compiler, planned = compiler_for(tmp_path / str(at), each)
        found = [(size, features, compiler._key(size, features)) for size, features in planned]
        forwards.append(found[0][-1])
        for size, features, key in found:
            keys.setdefault(key or (at, size, features), []).append(compiler)
            if key is not None and len(keys[key]) > 1:
                first = keys[key][0]
                assert text(first, size, features) == text(compiler, size, features)
    assert forwards[0] == forwards[-1]
    assert len(set(forwards[: len(names)])) == len(names)


def test_programs_with_adapters_are_of_equal_weights(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepCompiler, "_compiled", lambda *_: Uncompiled())
    lora = {"enable_lora": True, "max_lora_rank": 8}
    wider, fewer = {"max_lora_rank": 16}, {"lora_target_modules": ["q_proj"]}
    folder, keys = write_tiny_native(tmp_path, "llama"), []
    for more in ({}, {}, wider, fewer):
        with opened(folder, **{**lora, **more}) as llm:
            programs = llm.engine.loaded.programs
            keys.append([
                programs.compiler._key(size, features)
                for size, features in programs._planned
                if features.adapters
            ])  # fmt: skip
    assert keys[0] and None not in keys[0]
    assert keys[0] == keys[1]
    assert all(set(keys[0]).isdisjoint(other) for other in keys[2:])


def text(compiler: StepCompiler, *program: Any) -> str:
    return compiler.lower(*program).as_text()


def compiler_for(folder: Path, changes: tuple[str, ...]) -> tuple[StepCompiler, list[Any]]:
    """The compiler of an engine with these changes, and what it may compile, a forward first."""
    write_tiny_native(folder, "llama")
    file = folder / "config.json"
    config, settings = json.loads(file.read_text()), dict[str, Any]()
    for name in changes:
        config |= MODELS.get(name, {})
        settings |= ENGINES.get(name, {})
    file.write_text(json.dumps(config))
    with opened(folder, **settings) as llm:
        programs = llm.engine.loaded.programs
        return programs.compiler, sorted(
            programs._planned, key=lambda one: one[1].part != "forward"
        )
