"""The static arguments of one compiled step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax import Array

from jengine.lora.weights import HEAD, LowRankWeight
from jengine.models.stages import StageLayout
from jengine.runner.step.adapter_rows import HeadAdapters, add_adapters, token_slots
from jengine.runner.step.context_parallel import ContextShards
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.step_input import StepInput
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.runner.variants.features import Features
from sharding.placement import Placement


@dataclass(frozen=True)
class Stages:
    """Layout of the pipeline's stages."""

    layout: StageLayout
    staged: tuple[bool, ...]  # whether a leaf is split by stage
    # Activations between stages are laid out for this bucket: [decode rows | prefill tokens].
    largest: Bucket


@dataclass(frozen=True)
class DrafterProgram:
    """The drafter; its leaves follow the model's."""

    method: Callable[[Any], Any]  # its model -> a `draft_stage.Drafter`
    rebuild: Callable[[Leaves], Any]  # its leaves -> its model
    first_leaf: int
    first_layer: int  # index of its first layer among all layers with a KV cache
    points: tuple[str, ...] = ()  # tap points of the target model that it reads


@dataclass(frozen=True)
class AdapterProgram:
    """LoRA of a program; its arrays follow all other leaves."""

    weights: Mapping[str, LowRankWeight]  # by module path
    leaves: Any  # abstract: two arrays per weight
    implementation: str  # of the low-rank matmuls

    def arrays(self, leaves: Leaves, *, staged: bool = False) -> dict[str, Leaves]:
        """The arrays by weight: of those split by pipeline stage if `staged`, else of the
        others."""
        return {
            path: leaves[2 * place : 2 * place + 2]
            for place, (path, weight) in enumerate(self.weights.items())
            if weight.is_staged == staged
        }

    def install(self, model: Any, arrays: Mapping[str, Leaves], slots: Array) -> None:
        """Install LoRA with these arrays into a traced model, given each token's adapter slot."""
        add_adapters(model, self.weights, arrays, slots, self.implementation)

    @property
    def key(self) -> Hashable:
        """All properties of adapters that a traced program depends on."""
        weights = [(path, one, one.owners.tobytes()) for path, one in self.weights.items()]
        return tuple(weights), self.leaves, self.implementation

    @property
    def of_head(self) -> slice:
        """Slice of the arrays that belong to the output head; empty if adapters do not change
        it."""
        paths = list(self.weights)
        first = 2 * paths.index(HEAD) if HEAD in paths else 0
        return slice(first, first + (2 if HEAD in paths else 0))


class Models(NamedTuple):
    """What a step rebuilds from its leaves while it is traced."""

    model: Any
    token_adapters: Any = None  # i32[D + T] adapter slot of each token; None: no LoRA
    tap_arrays: Leaves = ()  # arrays of all tap sets, concatenated


@dataclass(frozen=True)
class Program:
    """The shape and features of a step, and the model that it runs. Head programs have an empty
    bucket."""

    bucket: Bucket
    features: Features
    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]  # flat leaves -> the model; called only while tracing
    placement: Placement
    stages: Stages | None = None  # None: no pipeline
    drafter: DrafterProgram | None = None  # None: steps make no drafts
    adapters: AdapterProgram | None = None  # None: no LoRA
    # Indices of the leaves that the output head reads, among `num_leaves`; head programs take only
    # these.
    head_leaves: tuple[int, ...] = ()
    num_leaves: int = 0

    def models(self, leaves: Leaves, inputs: StepInput) -> Models:
        """Rebuild the model from leaves, with LoRA installed; also tap leaves and adapter slots per
        token."""
        end = len(leaves) - (0 if self.adapters is None else len(self.adapters.leaves))
        of_taps = leaves[end - sum(len(taps.shapes) for taps in self.features.taps) : end]
        own = leaves[: end - len(of_taps)]
        first = len(own) if self.drafter is None else self.drafter.first_leaf
        model, slots = self.rebuild(own[:first]), None
        if self.adapters is not None:
            slots = token_slots(inputs.adapters.slots, self.bucket, self.shapes)
            own_slots = ContextShards(self.bucket, self.shapes, self.placement).of_tokens(slots)
            self.adapters.install(model, self.adapters.arrays(leaves[end:]), own_slots)
        return Models(model, slots, of_taps)

    def drafting(self, leaves: Leaves) -> tuple[Any, Any]:
        """The model and its drafter."""
        assert self.drafter is not None, "an engine whose device drafts"
        first = self.drafter.first_leaf
        drafter = self.drafter.method(self.drafter.rebuild(leaves[first:]))
        return self.rebuild(leaves[:first]), drafter

    def of_head(self, leaves: Leaves) -> Leaves:
        """Leaves that `head` takes."""
        found = tuple(leaves[place] for place in self.head_leaves)
        if self.adapters is None:
            return found
        return found + leaves[-len(self.adapters.leaves) :][self.adapters.of_head]

    def head(self, leaves: Leaves) -> tuple[Any, HeadAdapters | None]:
        """The model with only the output head's leaves, and the head's adapters."""
        own = self.head_leaves
        model = self.rebuild(with_gaps(leaves[: len(own)], own, self.num_leaves))
        stacks = leaves[len(own) :]
        if self.adapters is None or not stacks:
            return model, None
        return model, HeadAdapters(
            self.adapters.weights[HEAD], stacks, self.adapters.implementation
        )

    @property
    def kept_points(self) -> tuple[str, ...]:
        """Tap points whose activations the step keeps for its drafter."""
        return self.drafter.points if self.drafter is not None and self.makes_drafts else ()

    @property
    def makes_drafts(self) -> bool:
        """Whether a drafter on the device runs after this step."""
        return self.drafter is not None and self.features.drafts

    @property
    def has_drafts(self) -> bool:
        """Whether decode rows may be drafts."""
        return self.features.drafts and self.shapes.has_drafts(self.bucket)

    def gathered(self, logits: Array) -> Array:
        """Logits as the sampler takes them: gathered over the vocabulary, except for an argmax.

        On shards every pass of a top-k or top-p filter would need collectives inside branches and
        loops, which CPU devices may reach in different orders and then deadlock.
        """
        if not self.features.sampling.reads_logits:
            return logits
        return self.placement.held(logits, (None, None))

    @property
    def sampler(self) -> str | None:
        """The sampler's implementation: its kernels need unsharded logits, so a single device."""
        alone, kernels = self.placement.mesh.size == 1, self.shapes.attention
        return kernels if alone and kernels != "xla" else None


def with_gaps(leaves: Leaves, places: tuple[int, ...], count: int) -> tuple[Any, ...]:
    """Scatter leaves to their places among `count`, None at the others."""
    found: list[Any] = [None] * count
    for place, leaf in zip(places, leaves, strict=True):
        found[place] = leaf
    return tuple(found)
