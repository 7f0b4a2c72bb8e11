"""Maps each part of a step (forward, sampler, other heads) to its function and its state fields.

Each is a function (leaves, state, given) -> (state, results). A part owns some fields of the state:
only these are donated and replaced. A forward does not depend on sampling features, so no sampling
parameter compiles the model again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from jax import Array

from jengine.runner.step.composed import multi_step, step
from jengine.runner.step.draft_stage import make_drafts
from jengine.runner.step.forward import forward
from jengine.runner.step.heads import choose, sample, score, slot_logits
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.pipeline_step import pipeline_forward
from jengine.runner.step.pooling_head import pool, pool_tokens
from jengine.runner.step.program import Program
from jengine.runner.step.state import StepState
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import Part

BODIES: dict[Part, Callable[..., tuple[StepState, Any]]] = {
    Part.STEP: step,
    Part.FORWARD: forward,
    Part.DRAFT: make_drafts,
    Part.SAMPLE: sample,
    Part.LOGITS: slot_logits,
    Part.CHOOSE: choose,
    Part.SCORE: score,
    Part.POOL: pool,
    Part.POOL_TOKENS: pool_tokens,
}


def body_of(program: Program) -> Callable[..., tuple[StepState, Any]]:
    """The function that a program traces."""
    if program.bucket.is_multi_step:
        return multi_step
    if program.stages is not None and program.features.part is Part.FORWARD:
        return pipeline_forward
    return BODIES[program.features.part]


# Parts that take only the output head's leaves.
READS_HEAD = frozenset({Part.SAMPLE, Part.LOGITS, Part.SCORE, Part.POOL, Part.POOL_TOKENS})


def outputs_of_head(model: Any, rows: Array, *, staged: bool) -> Any:
    """Everything that head parts compute from hidden states with model leaves."""
    if staged:
        return model.logits(rows), model.norm(rows)
    if model.config.pooling is None:
        return model.logits(rows)
    return model.pooler(rows), model.pooler.of_tokens(rows)


def state_fields(features: Features) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """State fields that a part replaces, and those that it only reads."""
    match features.part:
        case Part.STEP:
            return StepState._fields, ()
        case Part.FORWARD:
            owned = "caches", "tables", "held", "prompts", "sums"
            return owned, ("last_token", "lengths", "offsets", "next_drafts")
        case Part.DRAFT:
            return ("caches", "next_drafts"), ("last_token", "lengths", "tables")
        case Part.SAMPLE | Part.CHOOSE:
            adjusted = ("rows",) if features.sampling.adjust else ()
            return ("last_token", "lengths", *adjusted), ()
        case Part.SCORE | Part.POOL_TOKENS:
            return (), ("prompts",)
        case Part.POOL:
            return (), ("sums",)
    return (), ()


def fields_of(state: StepState, *names: tuple[str, ...]) -> tuple[tuple[Any, ...], ...]:
    """Values of state fields, by group of names."""
    return tuple(tuple(getattr(state, name) for name in group) for group in names)


def with_fields(names: tuple[str, ...], values: tuple[Any, ...], state: StepState) -> StepState:
    """The state with these fields replaced."""
    return state._replace(**dict(zip(names, values, strict=True)))


def on_fields(program: Program, body: Callable[..., tuple[StepState, Any]]) -> Callable[..., Any]:
    """A part as a function (leaves, owned fields, read fields, given) -> (owned fields,
    results)."""
    owned, read = state_fields(program.features)
    nothing: Any = StepState(*[cast(Any, None)] * len(StepState._fields))

    def run(leaves: Leaves, own: tuple[Any, ...], seen: tuple[Any, ...], given: Any) -> Any:
        state = with_fields(read, seen, with_fields(owned, own, nothing))
        state, results = body(leaves, state, given, program=program)
        return *fields_of(state, owned), results

    run.__name__ = program.features.part.value  # the program's name in profiles
    return run


def called(
    part: Callable[..., Any], features: Features, leaves: Leaves, state: StepState, given: Any
) -> tuple[StepState, Any]:
    """Call a compiled part of `on_fields` on the state. Returns the new state and the results."""
    owned, read = state_fields(features)
    fields, results = part(leaves, *fields_of(state, owned, read), given)
    return with_fields(owned, fields, state), results
