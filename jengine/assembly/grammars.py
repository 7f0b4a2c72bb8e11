"""Structured output on both sides of an engine: validation at the front, masks in the core. No jax.

In: settings and the model's source. Out: for a core, its admission gate and executor wrapper; for a
front, the compiler that validates grammars.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jengine.assembly.model_facts import ModelSource
from jengine.executor.grammar_masks import GrammarMasks
from jengine.executor.protocol import Executor
from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.grammar_rows import GrammarRows
from jengine.grammar.shared_tokenizer import TokenizerData, data_of
from jengine.grammar.tokenizer_check import check_tokenizer
from jengine.scheduler.gates import GrammarReady, MakeGate

if TYPE_CHECKING:  # imported when the first grammar is compiled
    from llguidance import LLTokenizer


class CoreGrammars(NamedTuple):
    """A core's grammar compiler, admission gate and executor wrapper. Nothing is compiled until
    needed."""

    compiler: GrammarCompiler
    gate: MakeGate
    around: Callable[[Executor], GrammarMasks]


def core_grammars(source: ModelSource) -> CoreGrammars:
    """Grammar support of this process's core; replicas share the compiler.

    The tokenizer is built in the background while the model loads, since building it stalls steps:
    this process's now, a front's once it is sent.
    """
    compiler = GrammarCompiler(lambda: core_tokenizer(source))
    writes = source.config.pooling is None
    if writes and source.told_tokenizer is not None:
        source.told_tokenizer.when_told(compiler.prepare)
    elif writes and source.tokenizer is not None:
        compiler.prepare()

    def around(executor: Executor) -> GrammarMasks:
        return GrammarMasks(executor, GrammarRows(compiler, source.config.vocab_size))

    return CoreGrammars(compiler, partial(GrammarReady, compiler.begin), around)


def core_tokenizer(source: ModelSource) -> LLTokenizer:
    """llguidance's form of the model's tokenizer, for masks."""
    from jengine.grammar.tokens import llguidance_tokenizer  # imports llguidance

    data = tokenizer_data(source)
    ends = [*source.eos_token_ids]
    if data.eos_token_id is not None and data.eos_token_id not in ends:
        ends.append(data.eos_token_id)
    return llguidance_tokenizer(data, source.config.vocab_size, ends)


def tokenizer_data(source: ModelSource) -> TokenizerData:
    """Tokenizer data of this process, or sent by the core's fronts."""
    if source.told_tokenizer is not None:
        return source.told_tokenizer.data
    check_tokenizer(source.tokenizer)
    assert source.tokenizer is not None, "checked"
    return data_of(source.tokenizer)
