"""An executor without a model: tokens are a pure function of the tokens before them.

In: plans. Out: StepOutputs, the same for every schedule. It keeps a mirror of rows and cache
from the plans alone, and asserts that each plan is complete and that every row reads back what it
wrote. For tests. Must not know requests, the scheduler, jax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from jengine.config import CacheConfig
from jengine.executor.protocol import WorkerHealth
from jengine.outputs import StepOutput
from jengine.plan import Entries, Entry, Plan, Wanted
from tests.executor.scripted_cache import ScriptedCache
from tests.executor.scripted_rows import MirrorRow, drafts_by_row, next_token
from tests.executor.scripted_rows import scripted_tokens as scripted_tokens
from tests.executor.scripted_scores import filled, joined, prompt_scores, sampled_scores
from tests.executor.scripted_states import ScriptedStates
from tests.executor.scripted_transfers import ScriptedTransfers


class ScriptedResult(NamedTuple):
    """What `submit` returns: the steps run in order, so the output is there already."""

    output: StepOutput

    @property
    def ready(self) -> bool:
        return True

    @property
    def has_left(self) -> bool:
        return True

    def result(self) -> StepOutput:
        return self.output


class ScriptedExecutor:
    """Runs plans in the order of `submit`, checking each."""

    def __init__(
        self,
        cache: CacheConfig,
        vocab_size: int,
        *,
        breaks: Callable[[Sequence[int]], bool] | None = None,
        draft: Callable[[Sequence[int], int], list[int]] | None = None,
    ) -> None:
        self.cache = cache
        self.vocab_size = vocab_size
        self._breaks = breaks  # texts after which the logits are not finite
        self._draft = draft  # what a device proposer drafts after a text; None: there is none
        self._rows: dict[int, MirrorRow] = {}
        self._cache = ScriptedCache(cache)
        self._states = ScriptedStates(cache)
        self.transfers = ScriptedTransfers(cache, self._cache.cached, self._states)
        # Sampler row -> which tokens may be sampled after each of its drafts.
        self._masks: dict[int, dict[int, np.ndarray]] = {}
        self._last_step = -1

    def submit(self, plan: Plan) -> ScriptedResult:
        """Run a plan."""
        assert plan.step > self._last_step, f"step {plan.step} follows step {self._last_step}"
        self._last_step = plan.step
        self._update_rows(plan)
        self._check_shape(plan)
        for forks in plan.forks:
            self.transfers.fork(forks)
        done = self.transfers.before(plan.transfers)
        output = self._run_repeatedly(plan) if plan.repeats > 1 else self._run(plan)
        self.transfers.after(plan.transfers)
        return ScriptedResult(output._replace(transfers_done=done))

    def update_weights(self, leaves: Any) -> None:
        self.leaves = leaves

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        raise AssertionError(method)

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(0, "script", self._last_step, 0.0)]

    def shutdown(self) -> None:
        """Nothing is to be freed."""

    def _run_repeatedly(self, plan: Plan) -> StepOutput:
        """All runs of a multi-step decode, which ends when every row has ended."""
        assert plan.num_decodes == len(plan.entries), "a multi-step decode runs decodes only"
        assert {entry.length for entry in plan.entries} == {plan.repeats}, "lengths differ"
        runs: list[StepOutput] = []
        for number in range(plan.repeats):
            if all(self._rows[entry.row].has_ended for entry in plan.entries):
                break
            entries = [Entry(entry.row, entry.start + number, 1) for entry in plan.entries]
            runs.append(self._run(replace(plan, entries=Entries.of(entries))))
        tokens = np.full((len(plan.entries), plan.repeats), -1, np.int32)
        for number, run in enumerate(runs):
            tokens[:, number] = run.tokens[:, 0]
        for entry in plan.entries if len(runs) < plan.repeats else ():
            self._rows[entry.row].lost = True  # what it runs from now on has a gap before it
        scores = [run.logprobs for run in runs if run.logprobs is not None]
        return StepOutput(tokens, joined(scores, axis=1))

    def _run(self, plan: Plan) -> StepOutput:
        self._take_drafts(plan)
        for index, entry in enumerate(plan.entries):
            mirror = self._rows[entry.row]
            if not mirror.lost:
                is_decode = index < plan.num_decodes
                start, length = self._place(entry, is_decode)
                self._check_entry(entry, start, length, is_decode)
                self._cache.write(mirror, start, length)
        ran = [entry.row for entry in plan.entries if not self._rows[entry.row].lost]
        for row in ran:
            self._cache.check(row, self._rows[row])
        self._states.read([self._rows[row] for row in ran])
        chunks = list(plan.entries)[plan.num_decodes :]
        prompts = prompt_scores([self._rows[one.row] for one in chunks], chunks, self.vocab_size)
        sampled = [entry.row for entry in plan.entries if entry.wanted is Wanted.TOKENS]
        tokens = [self._sample_all(row) for row in sampled]
        self._states.write([self._rows[row] for row in ran])
        logprobs = sampled_scores([self._rows[row] for row in sampled], tokens, self.vocab_size)
        for row in sampled:
            self._make_drafts(row, max(plan.next_drafts, 0))
        return StepOutput(filled(tokens), logprobs, prompts, next_drafts=self._made_drafts())

    def _made_drafts(self) -> np.ndarray | None:
        """What the last step of each row has drafted."""
        return None if self._draft is None else drafts_by_row(self._rows)

    def _make_drafts(self, row: int, count: int) -> None:
        """What the step drafts of the row's next tokens, which it runs behind the last one."""
        mirror = self._rows[row]
        assert self._draft is not None or not count, "a plan wants drafts of a step without a model"
        mirror.next_drafts = [] if self._draft is None else self._draft(mirror.token_ids, count)
        if mirror.lost or mirror.computed is None:
            return
        assert count <= self.cache.lookahead, f"row {row}: no blocks for {count} drafts"
        for table, group in zip(mirror.tables, self.cache.groups, strict=True):
            if group.spec.kind == "recurrent":
                continue  # no state is written for a draft
            reserved = len(table) * self.cache.block_size
            assert mirror.computed + self.cache.lookahead <= reserved, f"row {row} lacks blocks"

    def _take_drafts(self, plan: Plan) -> None:
        """Each row's drafts: those of the plan that follow the tokens that the row really has."""
        lengths = {entry.row: entry.length for entry in list(plan.entries)[: plan.num_decodes]}
        for mirror in self._rows.values():
            mirror.drafts = []
        for drafts in plan.drafts:
            mirror = self._rows[drafts.row]
            first, window = drafts.first, drafts.token_ids
            if self._draft is not None:
                assert not window, "a plan has drafts, and the step before has made some"
                first, window = len(mirror.token_ids), mirror.next_drafts
            skipped = len(mirror.token_ids) - first
            assert skipped >= 0, f"row {drafts.row}: no draft for position {first - 1}"
            assert all(token >= 0 for token in window), "a draft is a token"
            most = lengths.pop(drafts.row) - 1
            assert most > 0, f"row {drafts.row} has drafts and runs none"
            assert len(window) >= most, f"row {drafts.row} counts more drafts than it has"
            mirror.drafts = window[skipped : skipped + most]
            mirror.was_drafted = True
        assert set(lengths.values()) <= {1}, "a decode runs several tokens without drafts"

    def _place(self, entry: Entry, is_decode: bool) -> tuple[int, int]:
        """Where an entry's tokens really start, and how many they are."""
        mirror = self._rows[entry.row]
        if not is_decode or not mirror.was_drafted:
            return entry.start, entry.length
        assert mirror.computed is not None, f"row {entry.row} decodes before its prompt has run"
        assert mirror.computed <= entry.start, f"row {entry.row} may stand beyond {entry.start}"
        return mirror.computed, 1 + len(mirror.drafts)

    def _update_rows(self, plan: Plan) -> None:
        for row in plan.released:
            del self._rows[row]  # a row is released once, and only if it was there
        for new in plan.new_rows:
            assert new.row not in self._rows, f"row {new.row} starts but was not released"
            self._rows[new.row] = MirrorRow(new, len(self.cache.groups))
            self._masks.pop(new.sampler_row, None)
        for known in plan.known:
            mirror = self._rows[known.row]
            sampled = mirror.token_ids[known.start :]
            assert known.token_ids[: len(sampled)] == sampled, "the row's own tokens come first"
            mirror.token_ids[known.start :] = known.token_ids
            mirror.num_given = len(mirror.token_ids)
        self._update_masks(plan)
        for row, group, first, blocks in (
            (new.row, new.group, new.first, new.blocks) for new in plan.new_blocks
        ):
            table = self._rows[row].tables[group]
            assert len(table) == first, f"row {row} has {len(table)} blocks, gains at {first}"
            assert all(0 <= b < self.cache.num_blocks[group] for b in blocks), "no such block"
            table += blocks

    def _update_masks(self, plan: Plan) -> None:
        if plan.masks is None:
            return
        masks = plan.masks
        for row, after, words in zip(
            masks.rows.tolist(), masks.after.tolist(), masks.bits, strict=True
        ):
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: self.vocab_size]
            assert bits.any(), "a mask without any token"
            self._masks.setdefault(row + 1, {})[after] = bits

    def _check_shape(self, plan: Plan) -> None:
        rows = {entry.row for entry in plan.entries}
        assert len(rows) == len(plan.entries), "a row has two entries"
        assert {new.row for new in plan.new_rows} <= rows, "a new row has no entry"
        assert all(entry.length > 0 for entry in plan.entries), "an entry without tokens"

    def _check_entry(self, entry: Entry, start: int, length: int, is_decode: bool) -> None:
        row, mirror = entry.row, self._rows[entry.row]
        end, known = start + length, len(mirror.token_ids) + len(mirror.drafts)
        assert mirror.computed in (None, start), f"row {row}: {start} does not follow"
        assert end <= entry.start + entry.length, f"row {row} runs beyond what was reserved"
        assert end <= known, f"row {row} runs to {end} but only {known} tokens exist"
        assert bool(entry.wanted) == (end == known), f"row {row}: samples iff it reaches the end"
        if is_decode:
            own = start >= mirror.num_given
            own = own and length == 1 + len(mirror.drafts)
            assert own, f"row {row}: a decode runs one token of the device's own, and drafts"
        else:
            assert end <= mirror.num_given, f"row {row}: a chunk runs tokens the host gave"
        for table in mirror.tables:
            assert len(table) * self.cache.block_size >= end, f"row {row} has too few blocks"

    def _sample_all(self, row: int) -> list[int]:
        """The token after the last one, and after each draft that is the token sampled there."""
        mirror = self._rows[row]
        tokens = [self._sample(row)]
        for draft in mirror.drafts:
            if tokens[-1] != draft:
                break
            assert mirror.computed is not None
            mirror.computed += 1
            mirror.mark_up_to(mirror.computed)
            tokens.append(self._sample(row, len(tokens)))
        return tokens

    def _sample(self, row: int, after: int = 0) -> int:
        """The token after so many drafts."""
        mirror = self._rows[row]
        if self._breaks is not None and self._breaks(mirror.token_ids):
            mirror.failed = True
            mirror.token_ids.append(0)  # what the device feeds itself does not matter any more
            return -1
        token = self._next_token(mirror)
        if len(mirror.token_ids) - mirror.prompt_length < mirror.sampling.min_tokens:
            while token in mirror.sampling.stop_ids:
                token = (token + 1) % self.vocab_size
        allowed = self._masks.get(mirror.sampler_row, {}).get(after)
        while allowed is not None and not allowed[token]:
            token = (token + 1) % self.vocab_size
        mirror.token_ids.append(token)
        return token

    def _next_token(self, mirror: MirrorRow) -> int:
        """The token that follows what a row holds; subclasses may have texts of their own."""
        return next_token(mirror.marks[-1], self.vocab_size)
