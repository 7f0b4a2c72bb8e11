"""Grammar and thinking-budget state per row, derived only from plans and outputs.

In: plans, and sampled tokens. Out: plans with token masks, and reasons for rejected tokens. A row
has at most one step in flight, so its matcher is up to date when its next step is planned; drafts
are checked then too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from jengine.errors import JengineError, RequestError
from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.mask_filler import Follower, MaskFiller, leaves_no_choice
from jengine.grammar.matcher import FailedMatcher, Matcher
from jengine.grammar.thinking import BudgetFollower
from jengine.outputs import NO_TOKEN, REFUSED, Refusal, StepOutput
from jengine.plan import NewRow, Plan, RowSampling, TokenMasks
from jengine.structured_outputs import GrammarSpec

# Shorter runs of forced tokens are sampled: a prefill chunk is computed in whole tiles, but saves
# steps.
LEAST_JUMP = 2


@dataclass(slots=True)
class MaskedRow:
    """A row with a grammar or a thinking budget."""

    number: int
    matcher: Follower  # state after the tokens read so far
    sampler_row: int  # 1 + its row in the sampler's pool, which holds its mask
    jumps: bool = False  # whether forced tokens may be appended without sampling
    mask: bytes | None = None  # for its next token, i32[words]; None: not computed yet
    sent: bytes | None = None  # the mask on the device
    next_drafts: Sequence[int] = ()  # drafts of its last step, for the next tokens; -1: none


class CheckedDraft(NamedTuple):
    """A draft accepted by the grammar, and the matcher state after it."""

    token: int
    matcher: Follower


class MaskedEntry(NamedTuple):
    """An entry of a plan in flight whose tokens a matcher waits for."""

    item: int  # index among the entries that want tokens
    row: MaskedRow
    ahead: Sequence[Follower] = ()  # matcher state after each of its drafts


class GrammarRows:
    """Matchers by row. `vocab_size` is that of the logits."""

    def __init__(self, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._filler = MaskFiller(compiler, -(-vocab_size // 32))
        self._rows: dict[int, MaskedRow] = {}
        self._drafts: dict[int, list[CheckedDraft]] = {}  # of rows in the plan being made

    def checked(self, row: int, next_drafts: Sequence[int] | None, most: int) -> list[int]:
        """Drafts that a row may run, at most `most`: tokens forced by its grammar, else drafts up
        to the first rejected or final one.

        `next_drafts` None: use the drafts that the device made in the row's last step, even if
        tokens are forced.
        """
        masked = self._rows.get(row)
        if masked is None:
            return []
        ahead, found = masked.matcher.copy(), list[CheckedDraft]()
        given = masked.next_drafts if next_drafts is None else ahead.forced() or next_drafts
        for token in given[:most]:
            ahead = ahead.copy()
            if token < 0 or not ahead.advance([token]) or ahead.is_terminated:
                break
            found.append(CheckedDraft(token, ahead))
        self._drafts[row] = found
        return [one.token for one in found]

    def mask(self, plan: Plan) -> tuple[Plan, list[MaskedEntry]]:
        """Add token masks to a plan. Returns it with the entries that need masks."""
        for row in plan.released:
            self._rows.pop(row, None)
        for new in plan.new_rows:
            self._rows.pop(new.row, None)
            if new.sampling.is_masked:
                self._rows[new.row] = MaskedRow(
                    new.row, self._follower_of(new), new.sampler_row, may_jump(new.sampling)
                )
        if not self._rows:
            return plan, []
        entries = self._entries(plan)
        masks = self._masks(entries) if entries else None
        return (msgspec.structs.replace(plan, masks=masks) if masks else plan), entries

    def _entries(self, plan: Plan) -> list[MaskedEntry]:
        """Entries of a plan that sample for a row with a matcher."""
        wanted, drafts, self._drafts = plan.entries.wants_tokens, self._drafts, {}
        sampled, lengths = plan.entries.rows[wanted].tolist(), plan.entries.lengths[wanted].tolist()
        entries = []
        for item, (row, length) in enumerate(zip(sampled, lengths, strict=True)):
            own = self._rows.get(row)
            if own is None:
                continue
            # Decodes come first, and all of them want tokens.
            count = length - 1 if item < plan.num_decodes else 0
            ahead = [one.matcher for one in drafts.get(row, ())[:count]]
            assert len(ahead) == count, f"row {row} runs drafts that were not checked"
            entries.append(MaskedEntry(item, own, ahead))
        return entries

    def _masks(self, entries: Sequence[MaskedEntry]) -> TokenMasks | None:
        """Masks that differ from those on the device; None if none does."""
        self._fill([one.row for one in entries if one.row.mask is None])
        places, masks = list[tuple[int, int]](), list[bytes]()
        for _, row, _ in entries:
            assert row.mask is not None, "filled"
            if row.mask != row.sent:
                places.append((row.sampler_row, 0))
                masks.append(row.mask)
                row.sent = row.mask
        drafted = [one for one in entries if one.ahead]
        if drafted:
            filled = self._filler.filled([one for entry in drafted for one in entry.ahead])
            masks.append(filled.tobytes())
            for entry in drafted:
                places += [(entry.row.sampler_row, 1 + place) for place in range(len(entry.ahead))]
        if not places:
            return None
        rows, after = np.array(places, np.int32).T
        return TokenMasks(rows.tobytes(), after.tobytes(), b"".join(masks))

    def _fill(self, rows: Sequence[MaskedRow]) -> np.ndarray:
        """Compute and keep the rows' next masks."""
        masks = self._filler.filled([row.matcher for row in rows])
        for row, mask in zip(rows, masks, strict=True):
            row.mask = mask.tobytes()
        return masks

    def followed(self, output: StepOutput, entries: Sequence[MaskedEntry]) -> StepOutput:
        """Advance matchers by an output's tokens; rejected ones are marked in the returned
        output."""
        refused: dict[int, int] = {}  # item -> index of its rejected token
        going: list[MaskedEntry] = []
        tokens, next_drafts = output.tokens.tolist(), output.next_drafts
        for entry in entries:
            item, row, ahead = entry
            row.next_drafts = () if next_drafts is None else next_drafts[row.number].tolist()
            sampled = [token for token in tokens[item] if token != NO_TOKEN]
            if len(sampled) > 1:  # all but the last are accepted drafts
                row.matcher = ahead[len(sampled) - 2]
            row.mask = None
            if not row.matcher.advance(sampled[-1:]):
                refused[item] = len(sampled) - 1
            elif sampled[-1] >= 0 and not row.matcher.is_terminated:
                going.append(entry)
        if forced := self._jumped(going):
            output = output._replace(forced=forced)
        if not refused:
            return output
        marked = np.array(output.tokens)  # the original may be read-only
        marked[list(refused), list(refused.values())] = REFUSED
        reasons = {
            item: row.matcher.refusal
            for item, row, _ in entries
            if item in refused and row.matcher.refusal is not None
        }
        return output._replace(tokens=marked, refusals={**output.refusals, **reasons})

    def _jumped(self, entries: Sequence[MaskedEntry]) -> dict[int, list[int]]:
        """Forced tokens by item (jump-ahead); computes all other rows' next masks."""
        if not entries:
            return {}
        forced: dict[int, list[int]] = {}
        no_choice = leaves_no_choice(self._fill([one.row for one in entries])).tolist()
        for (item, row, _), is_forced in zip(entries, no_choice, strict=True):
            tokens = row.matcher.forced() if is_forced and row.jumps else ()
            if len(tokens) >= LEAST_JUMP:
                forced[item] = list(tokens)
                row.matcher.advance(tokens)
                row.mask = None
        return forced

    def _follower_of(self, new: NewRow) -> Follower:
        """Build a row's matcher and advance it by the tokens so far."""
        sampling, prompt = new.sampling, new.token_ids[: new.prompt_length]
        follower = (
            None if sampling.grammar is None else self._matcher_of(sampling.grammar, sampling)
        )
        if sampling.thinking is not None:
            follower = BudgetFollower(sampling.thinking, prompt, sampling.stop_ids, follower)
        assert follower is not None, "asked for rows that are masked"
        follower.advance(new.token_ids[new.prompt_length :])
        return follower

    def _matcher_of(self, spec: GrammarSpec, sampling: RowSampling) -> Follower:
        try:
            compiled, tokenizer = self._compiler.compiled(spec), self._compiler.tokenizer
            assert compiled is not None and tokenizer is not None, "not only checked"
        except JengineError as error:
            return FailedMatcher(Refusal(str(error), isinstance(error, RequestError)))
        return Matcher(
            compiled.deep_copy(), tokenizer.eos_tokens, sampling.stop_ids, spec.begins_after
        )


def may_jump(sampling: RowSampling) -> bool:
    """Whether forced tokens may skip sampling: not if their log-probabilities are wanted or the
    device counts tokens for penalties or bad words."""
    return sampling.logprobs is None and not sampling.counts_tokens
