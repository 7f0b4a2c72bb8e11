"""A loop whose executor fills masks: for rows with a grammar or a budget of reasoning."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from jengine.executor.grammar_masks import GrammarMasks
from jengine.grammar.grammar_rows import GrammarRows
from jengine.plan import Plan
from tests.executor.scripted import ScriptedExecutor, ScriptedResult
from tests.grammar.letters import compiler
from tests.scheduler.scheduler_loop import VOCAB, Loop, TruthProposer

COMPILER = compiler()
# Turns of a search over schedules, and what `searched` makes its loop of.
any_schedule = given(
    st.lists(st.sampled_from(["step", "abort", "add"]), min_size=5, max_size=40),
    st.integers(6, 20),
    st.integers(0, 2),
    st.sampled_from([None, 0, 1, 3]),
    st.booleans(),
)


def searched(blocks: int, depth: int, wrong: int | None, on_device: bool) -> Loop:
    """A loop with drafts, of which each `wrong`-th is (0: none); None: without drafts."""
    drafting: dict[str, object] = {}
    if wrong is not None:
        source = {"device_wrong": wrong} if on_device else {"proposer": TruthProposer(wrong)}
        drafting = {**source, "most_drafts": 4}
    return followed(blocks=blocks, depth=depth, **drafting)


def followed(**settings: object) -> Loop:
    """A loop whose executor follows grammars."""
    followers = GrammarRows(COMPILER, VOCAB)
    loop = Loop(check_drafts=followers.checked, **settings)  # type: ignore[arg-type]
    submitted = Submitted(loop.executor)
    loop.executor = GrammarMasks(submitted, followers)  # type: ignore[assignment, arg-type]
    return loop


class Submitted:
    """Keeps the plans that a scripted executor is given."""

    update_weights = call_workers = health = shutdown = None  # nobody asks for them

    def __init__(self, script: ScriptedExecutor) -> None:
        self._script = script
        self.plans: list[Plan] = []

    def submit(self, plan: Plan) -> ScriptedResult:
        self.plans.append(plan)
        return self._script.submit(plan)


def masked(plan: Plan) -> list[int]:
    """The sampler rows whose masks a plan brings."""
    return [] if plan.masks is None else (plan.masks.rows + 1).tolist()


def submitted(loop: Loop) -> list[Plan]:
    """The plans as they were submitted."""
    masks: Any = loop.executor
    return masks.executor.plans
