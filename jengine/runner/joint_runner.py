"""Joint steps: data-parallel replicas run every step together, in programs over all devices.

In: a plan per replica; a replica without one runs an empty step. Out: each replica's results. A
round of plans is queued when all have arrived, when a replica submits another, when a result is
read, or on `launch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax

from jengine.outputs import StepOutput
from jengine.plan import NO_ENTRIES, Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.packing import PackedStep, bucket_for, no_prompts, pack, prompt_chunks
from jengine.runner.plans.rows import Rows
from jengine.runner.plans.step_results import PendingStep
from jengine.runner.profiler import PROFILER
from jengine.runner.programs.block_tables import block_entries
from jengine.runner.programs.programs import Found
from jengine.runner.runner import Companion, PlanRunner, given_with, needed_with
from jengine.runner.step.joined import JoinedReplicas
from jengine.runner.step.prompt_chunk import PromptChunk
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import Part
from jengine.runner.variants.tap_sets import TapSet
from jengine.sampling.processor_sets import ProcessorSet
from sharding.mesh import steps_may_queue

Numbered = TypeVar("Numbered", TapSet, ProcessorSet)


class JointStep:
    """One replica's plan in a round that may not be queued yet."""

    def __init__(self, group: JointGroup) -> None:
        self._group = group
        self.pending: PendingStep | None = None

    @property
    def ready(self) -> bool:
        """Whether the step has run. Queues its round."""
        return self._queued().ready

    @property
    def has_left(self) -> bool:
        """Whether its round has been queued."""
        return self.pending is not None

    def result(self) -> StepOutput:
        return self._queued().result()

    def _queued(self) -> PendingStep:
        if self.pending is None:
            self._group.launch()
        assert self.pending is not None, "a round has the plans of all its steps"
        return self.pending


class JointGroup:
    """All replicas' models, and the round of plans being gathered."""

    def __init__(
        self,
        models: Sequence[LoadedModel],
        joined: JoinedReplicas,
        companions: Sequence[Sequence[Companion]],
    ) -> None:
        self._models = models
        self._companions = companions  # of each replica
        self._joined = joined
        self._rows = [Rows(loaded.shapes) for loaded in models]
        self._round: dict[int, tuple[Plan, JointStep]] = {}
        self._may_queue = steps_may_queue(joined.placement.mesh)

    def submit(self, replica: int, plan: Plan) -> JointStep:
        """Add a replica's plan to the round, or begin the next one with it."""
        if replica in self._round:
            self.launch()
        step = JointStep(self)
        self._round[replica] = plan, step
        if len(self._round) == len(self._models):
            self.launch()
        return step

    def launch(self) -> None:
        """Queue the current round, if it has any plan."""
        if not self._round:
            return
        taken, self._round = self._round, {}
        number = max(plan.step for plan, _ in taken.values())
        idle = Plan(number, NO_ENTRIES, 0)
        plans = [taken[i][0] if i in taken else idle for i in range(len(self._models))]
        for replica, pending in enumerate(self._run(plans)):
            if replica in taken:
                taken[replica][1].pending = pending

    def run_empty(self, bucket: Bucket, features: Features, wanted: int) -> None:
        """See `EmptyRunner.run_empty`; for all replicas."""
        models, nothing = self._models, Plan(0, NO_ENTRIES, 0)
        chain = models[0].programs.chain(bucket, features)
        if chain.has_run(wanted):
            return
        packed = [
            pack(nothing, rows, chain.bucket, loaded.shapes)
            for loaded, rows in zip(models, self._rows, strict=True)
        ]
        chunks: Iterable[tuple[PromptChunk, ...]] = ()
        if (score := chain.parts.get(Part.SCORE)) is not None:
            padding = no_prompts(models[0].shapes, score.entry.bucket.num_tokens)
            chunks = [(padding,) * len(models)]
        self._queued([nothing] * len(models), packed, chain.parts, chunks)

    def _run(self, plans: Sequence[Plan]) -> list[PendingStep]:
        """Queue one step with a plan of each replica."""
        models = self._models
        first = models[0]
        for rows, plan in zip(self._rows, plans, strict=True):
            rows.apply(plan)
        features = together([
            needed_with(own, plan, rows, first)
            for own, plan, rows in zip(self._companions, plans, self._rows, strict=True)
        ])  # fmt: skip
        smallest = largest([
            bucket_for(plan, rows, first.ladders)
            for plan, rows in zip(plans, self._rows, strict=True)
        ])  # fmt: skip
        fitting = first.ladders.smallest_for(
            smallest.decode_rows, smallest.prefill_tokens, smallest.pages
        )
        chain = first.programs.chain(fitting, features)
        bucket, packed = chain.bucket, []
        for loaded, rows, plan in zip(models, self._rows, plans, strict=True):
            blocks = block_entries(plan.new_blocks)
            with PROFILER.pack():
                packed.append(pack(plan, rows, bucket, loaded.shapes, blocks))
            loaded.add_blocks(blocks[loaded.shapes.num_new_blocks(bucket) :])
            loaded.admit(plan.new_rows)
            loaded.mask(plan.masks)
        with PROFILER.step(max(plan.step for plan in plans), bucket):
            chunks = joint_chunks(packed, first, chain.parts)
            output = self._queued(plans, packed, chain.parts, chunks)
        for plan in plans:
            for found in chain.parts.values():
                found.entry.count(plan.num_tokens, plan.repeats, plan.num_prompt_tokens)
        outputs = self._parted(output)
        return [PendingStep(*one) for one in zip(plans, packed, outputs, strict=True)]

    def _queued(
        self, plans: Sequence[Plan], packed: Sequence[PackedStep], parts: dict[Part, Found],
        chunks: Iterable[tuple[PromptChunk, ...]],
    ) -> StepOutput:  # fmt: skip
        """Queue the programs for all replicas' packed plans, and for chunks of prompt tokens."""
        first, joined = self._models[0], self._joined
        state = jax.tree.map(lambda *own: joined.join(own), *(one.state for one in self._models))

        def run(found: Found, given: Any) -> Any:
            nonlocal state
            state, results = found.queue(first.taken_by(found), state, given)
            if not self._may_queue:
                jax.block_until_ready((results, state.last_token))
            return results

        main = parts[Part.FORWARD]
        given = [
            given_with(own, plan, one, main)
            for own, plan, one in zip(self._companions, plans, packed, strict=True)
        ]
        forwarded = run(main, joined.given(given))
        output = run(parts[Part.SAMPLE], forwarded.slots)
        scores = None
        if (score := parts.get(Part.SCORE)) is not None:
            scores = [run(score, joined.given(chunk)) for chunk in chunks]
        for loaded, own in zip(self._models, self._parted(state), strict=True):
            loaded.state = own
        return forwarded.completing(output)._replace(prompt_logprobs=scores)

    def _parted(self, whole: Any) -> list[Any]:
        """Split a tree of joined arrays into one per replica."""
        arrays, tree = jax.tree.flatten(whole)
        parts = zip(*map(self._joined.parts, arrays), strict=True)
        return [jax.tree.unflatten(tree, part) for part in parts]


class JointRunner:
    """Adds one replica's plans to the rounds of its group."""

    def __init__(self, group: JointGroup, replica: int, loaded: LoadedModel) -> None:
        self.group = group
        self.loaded = loaded
        self._replica = replica

    def submit(self, plan: Plan) -> JointStep:
        return self.group.submit(self._replica, plan)

    def run_empty(self, bucket: Bucket, features: Features, wanted: int) -> None:
        self.group.run_empty(bucket, features, wanted)

    def drain(self) -> None:
        """Queue the current round."""
        self.group.launch()

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        """Use these parameters for later plans. They are arrays over all replicas, so only the
        first replica's call has an effect."""
        if self._replica == 0:
            self.loaded.update_parameters(values)


def joint_chunks(
    packed: Sequence[PackedStep], loaded: LoadedModel, parts: dict[Part, Found]
) -> Iterator[tuple[PromptChunk, ...]]:
    """Chunks of prompt tokens to score, one per replica; a replica without more repeats its
    first."""
    if (score := parts.get(Part.SCORE)) is None:
        return
    shapes, size = loaded.shapes, score.entry.bucket.num_tokens
    each = [list(prompt_chunks(one, shapes, size)) for one in packed]
    for number in range(max(map(len, each))):
        yield tuple(own[number] if number < len(own) else own[0] for own in each)


def launch_of(runners: Sequence[PlanRunner]) -> Callable[[], None]:
    """Function that launches the replicas' current round; a no-op if each queues its own steps."""
    first = runners[0]
    return first.group.launch if isinstance(first, JointRunner) else lambda: None


def together(each: Sequence[Features]) -> Features:
    """Union of the features."""
    sampling = each[0].sampling

    def most(counts: list[int | None]) -> int | None:
        return max((count for count in counts if count is not None), default=None)

    return Features(
        replace(
            sampling,
            random=any(one.sampling.random for one in each),
            adjust=any(one.sampling.adjust for one in each),
            logprobs=most([one.sampling.logprobs for one in each]),
            own_ids=any(one.sampling.own_ids for one in each),
            processors=by_number([one.sampling.processors for one in each]),
        ),
        prompt_logprobs=most([one.prompt_logprobs for one in each]),
        taps=by_number([one.taps for one in each]),
        embeds=any(one.embeds for one in each),
    )


def by_number(each: Iterable[Iterable[Numbered]]) -> tuple[Numbered, ...]:
    """Union of numbered sets, sorted by number."""
    found = {one.number: one for sets in each for one in sets}
    return tuple(found[number] for number in sorted(found))


def largest(buckets: Sequence[Bucket]) -> Bucket:
    """Smallest bucket that covers all of these."""
    return Bucket(
        max(one.decode_rows for one in buckets),
        max(one.prefill_tokens for one in buckets),
        max(one.pages for one in buckets),
    )
