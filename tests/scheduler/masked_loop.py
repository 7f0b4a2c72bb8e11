"""A loop whose executor fills masks: for rows with a grammar or a budget of reasoning."""

from __future__ import annotations

from typing import Any

from jengine.executor.grammar_masks import GrammarMasks
from jengine.executor.scripted import ScriptedExecutor, ScriptedResult
from jengine.grammar.rows import GrammarRows
from jengine.plan import Plan
from tests.grammar.letters import compiler
from tests.scheduler.scheduler_loop import VOCAB, Loop

COMPILER = compiler()


def followed(**given: object) -> Loop:
    """A loop whose executor follows grammars."""
    followers = GrammarRows(COMPILER, VOCAB)
    loop = Loop(check_drafts=followers.checked, **given)  # type: ignore[arg-type]
    submitted = Submitted(loop.executor)
    loop.executor = GrammarMasks(submitted, followers)  # type: ignore[assignment, arg-type]
    return loop


class Submitted:
    """Keeps the plans that a scripted executor is given."""

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
