"""The matchers of all rows with a grammar, kept by plans and outputs alone.

In: plans, and the tokens that were sampled. Out: plans with token masks, and messages about tokens
that a grammar refused. A row has at most one step in flight, so its matcher stands where its
answer does when its next step is planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from jengine.errors import JengineError
from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.matcher import FailedMatcher, Matcher
from jengine.outputs import NO_TOKEN, REFUSED, StepOutput
from jengine.plan import NewRow, Plan, RowSampling, TokenMasks

# Fewer forced tokens are sampled: a prefill chunk is computed in whole tiles.
LEAST_JUMP = 8


class Follower(Protocol):
    """A matcher, or what stands for one."""

    error: str

    def advance(self, tokens: Sequence[int]) -> bool: ...

    def fill(self, mask: np.ndarray) -> None: ...

    def forced(self) -> list[int]: ...


class MaskedRow(NamedTuple):
    """A row with a grammar."""

    matcher: Follower
    sampler_row: int  # where the device keeps its mask: 1 + its row in the sampler's pool
    jumps: bool = False  # whether forced tokens may be appended without sampling


class MaskedEntry(NamedTuple):
    """One entry of a plan in flight, whose tokens a grammar is waiting for."""

    item: int  # among the entries that want tokens
    matcher: Follower
    jumps: bool


class GrammarRows:
    """Row -> matcher. `vocab_size`: of the logits."""

    def __init__(self, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._words = -(-vocab_size // 32)
        self._rows: dict[int, MaskedRow] = {}

    def mask(self, plan: Plan) -> tuple[Plan, list[MaskedEntry]]:
        """The plan with masks for its entries that need one, and those entries."""
        for row in plan.released:
            self._rows.pop(row, None)
        for new in plan.new_rows:
            self._rows.pop(new.row, None)
            if new.sampling.grammar is not None:
                self._rows[new.row] = MaskedRow(
                    self._matcher_of(new), new.sampler_row, may_jump(new.sampling)
                )
        if not self._rows:
            return plan, []
        sampled = plan.entries.rows[plan.entries.wants_tokens].tolist()
        found = [(i, self._rows[row]) for i, row in enumerate(sampled) if row in self._rows]
        if not found:
            return plan, []
        masks = self._filled([row for _, row in found])
        entries = [MaskedEntry(item, row.matcher, row.jumps) for item, row in found]
        return msgspec.structs.replace(plan, masks=masks), entries

    def _filled(self, rows: Sequence[MaskedRow]) -> TokenMasks:
        tokenizer = self._compiler.tokenizer
        assert tokenizer is not None, "a core's compiler has a tokenizer"
        own = -(-tokenizer.vocab_size // 32)  # at least that of the logits
        masks = np.empty((len(rows), own), np.int32)
        for mask, row in zip(masks, rows, strict=True):
            row.matcher.fill(mask)
        places = np.array([row.sampler_row for row in rows], np.int32)
        return TokenMasks(places.tobytes(), np.ascontiguousarray(masks[:, : self._words]).tobytes())

    def _matcher_of(self, new: NewRow) -> Follower:
        """A matcher that has taken what the row's answer has so far."""
        spec, sampling = new.sampling.grammar, new.sampling
        assert spec is not None, "asked for rows with a grammar"
        try:
            compiled, tokenizer = self._compiler.compiled(spec), self._compiler.tokenizer
            assert compiled is not None and tokenizer is not None, "not only checked"
        except JengineError as error:
            return FailedMatcher(str(error))
        matcher = Matcher(
            compiled.deep_copy(), tokenizer.eos_tokens, sampling.stop_ids, spec.begins_after
        )
        matcher.advance(new.token_ids[new.prompt_length :])
        return matcher


def followed(output: StepOutput, entries: Sequence[MaskedEntry]) -> StepOutput:
    """The output after its tokens were taken by their matchers; refused tokens are marked."""
    messages: dict[int, str] = {}
    forced: dict[int, list[int]] = {}
    for item, matcher, jumps in entries:
        sampled = [token for token in output.tokens[item].tolist() if token != NO_TOKEN]
        if not matcher.advance(sampled):
            messages[item] = matcher.error
        elif jumps and min(sampled) >= 0 and len(tokens := matcher.forced()) >= LEAST_JUMP:
            forced[item] = tokens
            matcher.advance(tokens)
    if forced:
        output = output._replace(forced=forced)
    if not messages:
        return output
    marked = np.array(output.tokens)  # the original may be read-only
    marked[list(messages)] = NO_TOKEN
    marked[list(messages), 0] = REFUSED
    return output._replace(tokens=marked, messages=messages)


def may_jump(sampling: RowSampling) -> bool:
    """Whether a row's forced tokens need not be sampled: not where their log-probabilities are
    wanted, or where the device counts tokens for penalties and bad words."""
    return sampling.logprobs is None and not sampling.counts_tokens
