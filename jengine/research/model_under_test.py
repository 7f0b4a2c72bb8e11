"""What is compared: a model folder, or the model of a live engine.

In: a path, or an LLM. Out: a ModelUnderTest, which can be opened as an engine and given to torch.
Must not know how anything is measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jengine.api.llm import LLM
from jengine.assembly.model_source import open_model_source, stored_format
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.values import human_integer
from jengine.assembly.sizes.device_defaults import device_defaults
from jengine.assembly.sizes.schedule_sizes import prefill_tile
from jengine.config import ModelConfig
from jengine.text.tokenizer import Tokenizer, has_tokenizer
from jengine.weights.abstract import with_values
from jengine.weights.resolve import is_gguf, resolve_model

OpenLLM = Callable[..., LLM]


@dataclass(frozen=True)
class ModelUnderTest:
    """A model, and how to run it in jengine and in torch."""

    name: str
    config: ModelConfig
    tokenizer: Tokenizer | None
    exported: Callable[[], AbstractContextManager[Path]]  # a folder that transformers can load
    open: OpenLLM  # an engine with few programs, given its settings
    open_plain: OpenLLM = LLM  # an engine as users have it, given its settings


def folder_under_test(
    model: str | Path, given: Mapping[str, Any], open_llm: OpenLLM = LLM
) -> ModelUnderTest:
    """The model in a folder, with the engine settings that were given."""
    settings = dict(given)
    name = str(model)
    folder = resolve_model(model, EngineArgs.checked("compare", model=model, **given).hub)
    model = folder = folder.absolute()
    if "tokenizer" not in settings and not (is_gguf(folder) or has_tokenizer(folder)):
        settings["skip_tokenizer_init"] = True
    args = EngineArgs.checked("compare", model=model, **settings)
    source = open_model_source(args.groups.model)

    def open_with(**sizes: Any) -> LLM:
        return open_llm(model, **few_programs({**sizes, **settings}, source.config))

    def open_plain(**sizes: Any) -> LLM:
        return open_llm(model, show_progress=False, **{**sizes, **settings})

    @contextmanager
    def converted() -> Iterator[Path]:
        least = {"enforce_eager": True, "max_num_seqs": 1, **settings}
        with open_llm(model, **least) as llm, saved(llm) as path:
            yield path

    # Weights that transformers cannot read are loaded by an engine and saved for it.
    readable = stored_format(args.load_format, folder) == "safetensors" and folder.is_dir()
    exported = (lambda: nullcontext(folder)) if readable else converted
    return ModelUnderTest(name, source.config, source.tokenizer, exported, open_with, open_plain)


def engine_under_test(llm: LLM) -> ModelUnderTest:
    """The engine's current parameters as a subject; the engine is left unchanged."""
    engine = llm.engine
    engine.check_leaves()
    module: Any = with_values(engine.declared, engine.loaded.parameters())
    kept = (
        "deterministic", "block_size", "tensor_parallel_size", "pipeline_parallel_size", "mesh",
        "mesh_axes",
    )  # fmt: skip
    same = {name: getattr(engine.args, name) for name in kept}

    def open_with(**sizes: Any) -> LLM:
        settings = few_programs({**sizes, **same}, engine.model)
        return LLM(module, skip_tokenizer_init=True, show_progress=False, **settings)

    name = type(module).__name__ if engine.folder is None else str(engine.folder)
    return ModelUnderTest(name, engine.model, engine.tokenizer, lambda: saved(llm), open_with)


def few_programs(settings: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The settings with one bucket of decode rows and of prefill tokens, to compile little."""
    chosen = dict(settings)
    if chosen.get("deterministic") or "compilation_config" in chosen:
        return chosen
    rows, tokens = (
        human_integer(name, chosen[name]) for name in ("max_num_seqs", "max_num_batched_tokens")
    )
    assert rows is not None and tokens is not None, "sizes are always given"
    tile = prefill_tile(config, device_defaults())
    tiles = max(tokens, rows + tile) // tile
    chosen["compilation_config"] = {
        "variants": ["scored"],
        "decode_rows": [rows],
        "prefill_tokens": [tiles * tile],
        "wait_for": "all",  # what is compared must not depend on time
    }
    return chosen


@contextmanager
def saved(llm: LLM) -> Iterator[Path]:
    """Context: a temporary model folder with the engine's parameters, for torch to read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        llm.save(path)
        yield path
