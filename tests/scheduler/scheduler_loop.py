"""The engine's loop around a Scheduler and a ScriptedExecutor, one call a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jengine.config import CacheConfig, CacheGroup, ScheduleConfig
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import TokenDelta
from jengine.plan import Plan, RowSampling, Wanted
from jengine.request import WireRequest
from jengine.scheduler.draft_sources import CheckDrafts, DeviceDrafts, HostDrafts
from jengine.scheduler.drafting import Drafting
from jengine.scheduler.gates import MakeGate
from jengine.scheduler.scheduler import Scheduler
from jengine.scheduler.tiered_transfers import TieredTransfers
from jengine.speculative.proposer import Proposer
from tests.executor.scripted import ScriptedExecutor, ScriptedResult, scripted_tokens
from tests.kvcache.cache_cases import FULL

VOCAB = 97


def make_wire(prompt: int | list[int], name: str = "r", **more: Any) -> WireRequest:
    """A request; an integer prompt is that many tokens, others for each name."""
    if isinstance(prompt, int):
        prompt = [(position + 7 * sum(name.encode())) % VOCAB for position in range(prompt)]
    sampling = more.pop("sampling", RowSampling())
    return WireRequest(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=sampling,
        max_tokens=more.pop("max_tokens", 4),
        **more,
    )


def truth(wire: WireRequest, max_model_len: int = 64) -> tuple[list[int], str]:
    """The tokens and finish reason every schedule must give."""
    cap = min(wire.max_tokens, max_model_len - len(wire.prompt_token_ids))
    tokens = scripted_tokens(wire.prompt_token_ids, cap, VOCAB)
    for index, token in enumerate(tokens):
        if token in wire.eos_token_ids or token in wire.stop_token_ids:
            return tokens[: index + 1], "stop"
    return tokens, "length"


def rows(plan: Plan | None) -> list[int]:
    """The row of each entry."""
    assert plan is not None
    return [entry.row for entry in plan.entries]


def starts(plan: Plan | None) -> list[int]:
    """The first position of each entry."""
    assert plan is not None
    return [entry.start for entry in plan.entries]


def lengths(plan: Plan | None) -> list[int]:
    """The number of tokens of each entry."""
    assert plan is not None
    return [entry.length for entry in plan.entries]


def samples(plan: Plan | None) -> list[bool]:
    """Whether each entry wants tokens."""
    assert plan is not None
    return [entry.wanted is Wanted.TOKENS for entry in plan.entries]


def drafted(wrong: int, known: Sequence[int], count: int) -> list[int]:
    """The next tokens of a scripted row, but for each `wrong`-th position (0: none)."""
    right = scripted_tokens(known, count, VOCAB)
    return [
        (token + 1) % VOCAB if wrong and place % wrong == 0 else token
        for place, token in enumerate(right, len(known))
    ]


class TruthProposer:
    """Proposes the tokens that scripted rows sample, but for each `wrong`-th position (0: none)."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong

    def begin(self, tokens: Sequence[int], prompt_length: int) -> TruthRow:
        return TruthRow(self.wrong, tokens)


class TruthRow:
    """One request's text."""

    def __init__(self, wrong: int, tokens: Sequence[int]) -> None:
        self.wrong = wrong
        self.tokens = list(tokens)
        self.is_closed = False

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def propose(self, count: int, ahead: int = 0) -> np.ndarray:
        return np.array(drafted(self.wrong, self.tokens, ahead + count), np.int32)

    def close(self) -> None:
        self.is_closed = True


class Loop:
    """Schedules, submits and commits; collects the deltas of each request."""

    def __init__(
        self,
        *groups: CacheGroup,
        depth: int = 1,
        blocks: int | tuple[int, ...] = 65,
        block_size: int = 4,
        prefix: bool = True,
        spacing: int = 1,
        gates: Sequence[MakeGate] = (),
        breaks: Callable[[Sequence[int]], bool] | None = None,
        proposer: Proposer | None = None,
        device_wrong: int | None = None,
        draft: Callable[[Sequence[int], int], list[int]] | None = None,
        most_drafts: int = 3,
        adaptive: bool = False,
        check_drafts: CheckDrafts | None = None,
        draft_cost: float = 0.0,
        transfers: Callable[[CacheCoordinator], TieredTransfers] | None = None,
        **schedule: Any,
    ) -> None:
        groups = groups or (FULL,)
        counts = blocks if isinstance(blocks, tuple) else (blocks,) * len(groups)
        lookahead = 0 if device_wrong is None else most_drafts
        drafts = proposer is not None or device_wrong is not None
        config = CacheConfig(
            groups, block_size, counts, prefix, lookahead=lookahead,
            keeps_partial_blocks=prefix and spacing == 1 and not drafts,
        )  # fmt: skip
        settings = {
            "max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 64,
            "prefill_tile": 1, **schedule,
        }  # fmt: skip
        self.depth = depth
        self.cache = CacheCoordinator(config)
        self.transfers = None if transfers is None else transfers(self.cache)
        self.drafting: Drafting | None = None
        if drafts:
            self.drafting = Drafting(
                DeviceDrafts(check_drafts)
                if proposer is None
                else HostDrafts(proposer, check_drafts),
                self.cache,
                most=most_drafts,
                most_rows=settings["max_num_seqs"] * (1 + most_drafts),
                adaptive=adaptive,
                draft_cost=draft_cost,
            )
        self.scheduler = Scheduler(
            ScheduleConfig(**settings),
            self.cache,
            decode_length=self.drafting,
            depth=depth,
            spacing=spacing,
            gates=gates,
            transfers=self.transfers,
        )
        if device_wrong is not None and draft is None:
            draft = partial(drafted, device_wrong)
        self.executor = ScriptedExecutor(config, VOCAB, breaks=breaks, draft=draft)
        self.in_flight: deque[tuple[Plan, ScriptedResult]] = deque()
        self.plans: list[Plan] = []
        self.tokens: dict[str, list[int]] = {}
        self.finals: dict[str, TokenDelta] = {}
        self.deltas: list[TokenDelta] = []

    def add(self, *wires: WireRequest) -> None:
        for wire in wires:
            self.scheduler.add(wire)
            self.tokens[wire.request_id] = []

    def schedule(self) -> Plan | None:
        plan = self.scheduler.schedule()
        self.check()
        if plan is not None:
            self._check_cost(plan)
            self._check_spacing(plan)
            self.plans.append(plan)
            self.in_flight.append((plan, self.executor.submit(plan)))
        return plan

    def commit(self) -> list[TokenDelta]:
        plan, future = self.in_flight.popleft()
        deltas = self.scheduler.commit(plan, future.result())
        self.take(*deltas)
        self.check()
        return deltas

    def step(self) -> Plan | None:
        """One turn of the engine's loop."""
        plan = self.schedule()
        if self.in_flight and (plan is None or len(self.in_flight) > self.depth):
            self.commit()
        return plan

    def abort(self, name: str) -> TokenDelta | None:
        delta = self.scheduler.abort(name)
        if delta is not None:
            self.take(delta)
        self.check()
        return delta

    def drain(self, steps: int = 500) -> None:
        """Run until every request is answered and nothing is in flight."""
        while self.scheduler.has_unfinished or self.in_flight:
            steps -= 1
            assert steps, "the requests do not finish"
            self.step()
        assert self.cache.usage == 0
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0

    def take(self, *deltas: TokenDelta) -> None:
        for delta in deltas:
            assert delta.request_id not in self.finals, "a delta after the final one"
            self.deltas.append(delta)
            self.tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                self.finals[delta.request_id] = delta

    def check(self) -> None:
        self.cache.check()
        if self.transfers is not None:
            self.transfers.check()
        for request in self.scheduler._requests.running:
            surely = request.num_known + request.num_in_flight
            if request.num_in_flight and request.num_computed >= request.known_at_admission:
                assert surely - 1 <= request.num_computed, "more tokens than are counted"
            elif request.num_computed >= request.known_at_admission:
                assert request.num_computed == request.num_known - 1, "drafts were not taken back"

    def _check_spacing(self, plan: Plan) -> None:
        """A decode row's token has been committed, or was sampled so many plans before."""
        for before, _ in self.in_flight:
            if plan.step - before.step < self.scheduler.spacing:
                sampled = {entry.row for entry in before.entries if entry.wanted}
                assert not sampled & {entry.row for entry in list(plan.entries)[: plan.num_decodes]}

    def _check_cost(self, plan: Plan) -> None:
        config = self.scheduler.config
        chunks = list(plan.entries)[plan.num_decodes :]
        tiles = sum(-(-chunk.length // config.prefill_tile) for chunk in chunks)
        tokens = plan.num_decode_rows + tiles * config.prefill_tile
        assert tokens <= config.max_num_batched_tokens

    def assert_truth(self, *wires: WireRequest) -> None:
        """Each request got exactly what any schedule must give it."""
        for wire in wires:
            expected = truth(wire, self.scheduler.config.max_model_len)
            name = wire.request_id
            assert (self.tokens[name], self.finals[name].finish_reason) == expected
