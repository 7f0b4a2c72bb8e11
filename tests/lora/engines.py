"""An engine with adapters, and what the models with each adapter merged answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jengine
from jengine import LoRARequest, SamplingParams
from tests.api.engines import random_prompts, tiny_engine
from tests.lora.adapters import ATTENTION, MLP, write_adapter, write_merged
from tests.models.tiny_models import write_tiny_native

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
PROMPTS = random_prompts(5, 40, 17, 29)
PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 512}
SETTINGS: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 4, **PLAIN}
TARGETS: dict[str, tuple[str, ...]] = {
    "all": (*ATTENTION, *MLP, "lm_head", "embed_tokens"),
    "queries": ("q_proj",),
    "mlp": MLP,
}
Expected = dict[str | None, list[Any]]


class Models(NamedTuple):
    """A model, adapters for it by name, and models with each of them merged."""

    base: Path
    adapters: dict[str, LoRARequest]
    merged: dict[str, Path]


def written_adapters(folder: Path) -> dict[str, LoRARequest]:
    """The adapters that `write_models` wrote into a folder, by name."""
    return {
        name: LoRARequest(name, number, str(folder / name))
        for number, name in enumerate(TARGETS, start=1)
    }


def turns(llm: jengine.LLM, adapters: dict[str, LoRARequest]) -> list[Any]:
    """Tokens by several adapters and none, before and after one of them is removed, and by a live
    one: more than there are slots."""

    def answer(names: Sequence[str | None]) -> list[list[int]]:
        loras = [None if name is None else adapters[name] for name in names]
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=loras)
        return [list(output.outputs[0].token_ids) for output in outputs]

    found = [answer(["all", None, "queries", "mlp"])]
    removed = llm.remove_lora(adapters["mlp"].lora_int_id)
    found.append(answer(["mlp", "all", None, "mlp"]))
    draw = np.random.default_rng(5)
    down = {"a": draw.normal(0, 0.3, (48, 2)), "b": draw.normal(0, 0.3, (2, 32))}
    live = LoRARequest("live", 90)
    added = llm.add_lora(live, {"layers": {"0": {"mlp": {"down": down}}}})
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=live)
    found.append([list(output.outputs[0].token_ids) for output in outputs])
    return [removed, added, *found]


class Setup(NamedTuple):
    """An engine, and what it runs."""

    llm: jengine.LLM
    models: Models

    @property
    def adapters(self) -> dict[str, LoRARequest]:
        """The adapters by name."""
        return self.models.adapters

    def answer(self, names: Sequence[str | None], prompts: Any = PROMPTS) -> list[Any]:
        """The answers to prompts by these adapters."""
        loras = [None if name is None else self.adapters[name] for name in names]
        return self.llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=loras)


def write_models(folder: Path) -> Models:
    """A model and adapters for it."""
    return models_of(write_tiny_native(folder / "base", "llama"), folder)


def models_of(base: Path, folder: Path) -> Models:
    """The model and adapters for it, which are written to the folder."""
    requests, merged = {}, {}
    for number, (name, targets) in enumerate(TARGETS.items(), start=1):
        added = write_adapter(folder / name, base, targets, seed=number)
        scaled = {key: 2.0 * part for key, part in added.items()}  # alpha / r
        merged[name] = write_merged(folder / f"merged-{name}", base, scaled)
        requests[name] = LoRARequest(name, number, str(folder / name))
    return Models(base, requests, merged)


def merged_answers(models: Models) -> Expected:
    """By adapter, the answers of the model with it merged."""
    found: Expected = {}
    for name, folder in {None: models.base, **models.merged}.items():
        with tiny_engine(folder, **PLAIN) as llm:
            found[name] = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return found


def check(outputs: Sequence[Any], names: Sequence[str | None], expected: Expected) -> None:
    """Compare answers to PROMPTS, in order, with those of the merged models."""
    for index, (output, name) in enumerate(zip(outputs, names, strict=True)):
        wanted = expected[name][index % len(PROMPTS)]
        assert output.outputs[0].token_ids == wanted.outputs[0].token_ids, (index, name)
        found, truth = (one.outputs[0].logprobs for one in (output, wanted))
        for ours, theirs in zip(found, truth, strict=True):
            for token, entry in theirs.items():
                np.testing.assert_allclose(ours[token].logprob, entry.logprob, atol=2e-4)
