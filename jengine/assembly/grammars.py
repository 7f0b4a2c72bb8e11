"""Structured output on both sides of an engine: checks at the front, masks in the core. No jax.

In: settings and the model's source. Out: for a core, its admission gate and what is put around its
executor; for a front, the compiler that checks grammars.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jengine.assembly.model_facts import ModelSource, tokenizer_of
from jengine.assembly.settings.args import EngineArgs
from jengine.executor.grammar_masks import GrammarMasks
from jengine.executor.protocol import Executor
from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.rows import GrammarRows
from jengine.grammar.tokenizer_check import check_tokenizer
from jengine.scheduler.gates import GrammarReady, MakeGate

if TYPE_CHECKING:  # imported when the first grammar is compiled
    from llguidance import LLTokenizer


class CoreGrammars(NamedTuple):
    """What a core needs for grammars. Nothing is compiled or loaded before a request has one."""

    compiler: GrammarCompiler
    gate: MakeGate
    around: Callable[[Executor], GrammarMasks]


def core_grammars(args: EngineArgs, source: ModelSource) -> CoreGrammars:
    """For the core of this process. Replicas share the compiler."""
    compiler = GrammarCompiler(lambda: core_tokenizer(args, source))

    def around(executor: Executor) -> GrammarMasks:
        return GrammarMasks(executor, GrammarRows(compiler, source.config.vocab_size))

    return CoreGrammars(compiler, partial(GrammarReady, compiler.begin), around)


def core_tokenizer(args: EngineArgs, source: ModelSource) -> LLTokenizer:
    """The model's tokenizer, which a core in a process of its own reads for its first grammar."""
    from jengine.grammar.tokens import llguidance_tokenizer  # llguidance with it

    tokenizer = source.tokenizer
    if tokenizer is None and source.folder is not None:
        given = args.tokenizer if isinstance(args.tokenizer, (str, Path)) else None
        folder = source.folder.absolute()
        tokenizer = tokenizer_of(EngineArgs(str(folder), tokenizer=given), folder)
    check_tokenizer(tokenizer)
    assert tokenizer is not None, "checked"
    ends = [*source.eos_token_ids]
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ends:
        ends.append(tokenizer.eos_token_id)
    return llguidance_tokenizer(tokenizer, source.config.vocab_size, ends)
