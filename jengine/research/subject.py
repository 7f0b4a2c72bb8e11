"""What is compared: a model folder, or the model of a live engine.

In: a path, or an LLM. Out: a Subject, which can be opened as an engine and given to torch. Must
not know how anything is measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jengine.config import ModelConfig
from jengine.engine.args import EngineArgs
from jengine.engine.llm import LLM
from jengine.engine.source import open_source, stored_format
from jengine.runner.build import split_model
from jengine.text.tokenizer import Tokenizer, has_tokenizer
from jengine.weights.folder import resolve_model

OpenLLM = Callable[..., LLM]


@dataclass(frozen=True)
class Subject:
    """A model, and how to run it here and elsewhere."""

    name: str
    config: ModelConfig
    tokenizer: Tokenizer | None
    exported: Callable[[], AbstractContextManager[Path]]  # a folder that transformers can load
    open: OpenLLM  # an engine, given its settings


def folder_subject(model: str | Path, given: Mapping[str, Any], open_llm: OpenLLM = LLM) -> Subject:
    """The model in a folder, with the engine settings that were given."""
    settings = dict(given)
    folder = resolve_model(model).absolute()
    if "tokenizer" not in settings and not has_tokenizer(folder):
        settings["skip_tokenizer_init"] = True
    args = EngineArgs.checked("compare", model=model, **settings)
    source = open_source(args)

    def open_with(**more: Any) -> LLM:
        return open_llm(model, **{**more, **settings})

    @contextmanager
    def converted() -> Iterator[Path]:
        with open_with(enforce_eager=True, max_num_seqs=1) as llm, saved(llm) as path:
            yield path

    # Weights that transformers cannot read are read by an engine and written for it.
    readable = stored_format(args.load_format, folder) == "safetensors"
    exported = (lambda: nullcontext(folder)) if readable else converted
    return Subject(str(model), source.config, source.tokenizer, exported, open_with)


def live_subject(llm: LLM) -> Subject:
    """The parameters that an engine uses now. They are not copied; the engine stays as it is."""
    engine = llm.engine
    engine.runner.check_leaves()
    _, rebuild = split_model(engine.declared)
    module = rebuild(engine.runner.leaves)
    same = {"deterministic": engine.args.deterministic, "block_size": engine.args.block_size}

    def open_with(**settings: Any) -> LLM:
        return LLM(module, skip_tokenizer_init=True, show_progress=False, **same, **settings)

    name = type(module).__name__ if engine.folder is None else str(engine.folder)
    return Subject(name, engine.model, engine.tokenizer, lambda: saved(llm), open_with)


@contextmanager
def saved(llm: LLM) -> Iterator[Path]:
    """The parameters of an engine as a folder, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        llm.save(path)
        yield path
