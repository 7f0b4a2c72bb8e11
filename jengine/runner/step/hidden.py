"""Results of a forward: the hidden states and metadata that head programs and drafters read."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array, lax

from jengine.models.language_model import LanguageModel
from jengine.outputs import StepOutput
from jengine.runner.step.adapter_rows import HeadAdapters
from jengine.runner.step.program import Program
from jengine.runner.step.prompt_chunk import PromptChunk
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import sampling_views
from jengine.sampling import SamplingInput
from jengine.sampling.acceptance import Drafted


def logits_of(
    model: Any,
    rows: Array,
    live: Array | None,
    adapters: HeadAdapters | None = None,
    slots: Array | None = None,
) -> Array:
    """Logits of hidden states, f32 [rows, vocab], with adapters of these slots. Rows with `live` -1
    may be skipped."""
    if adapters is not None and slots is not None:
        return model.live_logits(rows, live, adapters.added(rows, slots))
    if live is None or not isinstance(model, LanguageModel):
        return model.logits(rows)
    return model.live_logits(rows, live)


class Ran(NamedTuple):
    """All tokens of a forward (D decode rows, T prefill tokens), for the drafter."""

    packed: Any  # i32[...] the packed plan
    tokens: Any  # i32[D + T]
    hidden: Any  # f32[D + T, hidden] after the last norm
    positions: Any  # i32[D + T]; -1 for padding
    kept: Any  # tap point -> f32[D + T, hidden], of points that the drafter reads


class SlotInput(NamedTuple):
    """A forward's metadata of its S sampling slots, for the head programs."""

    ends: Any  # f32[S, hidden]
    section: Any  # i32[...] the sampler's section of the packed plan
    positions: Any  # i32[S] position of each token to be sampled
    drafts: Drafted | None  # None: the engine runs none
    adapters: Any  # i32[S] adapter slots; None: the engine has none

    def sampling(self, program: Program) -> SamplingInput:
        """The sampler's input, with every position known."""
        views = sampling_views(self.section, len(self.ends), program.shapes)
        return views._replace(positions=self.positions)


class Forwarded(NamedTuple):
    slots: SlotInput
    captured: dict[tuple[int, int], dict[str, Any]]  # as in StepOutput
    experts: Any
    ran: Ran | None = None  # None: no drafter runs after it

    def completing(self, output: StepOutput) -> StepOutput:
        """Merge a head's output with the forward's."""
        return output._replace(captured=self.captured, experts=self.experts)


def with_prompts(state: StepState, prompts: Array) -> StepState:
    """Store the hidden states of prompt tokens [..., T, hidden], if the state keeps them."""
    if state.prompts is None or not prompts.shape[-2]:
        return state
    kept = lax.dynamic_update_slice_in_dim(state.prompts, prompts, 0, prompts.ndim - 2)
    return state._replace(prompts=kept)


def chunk_rows(state: StepState, given: PromptChunk) -> Array:
    """Hidden states of a chunk's tokens."""
    assert state.prompts is not None, "an engine whose forwards keep those of prompts"
    rows = lax.dynamic_slice_in_dim(state.prompts, given.first[0], len(given.targets), -2)
    return rows if rows.ndim == 2 else rows.sum(axis=0)  # zeros except in the last stage
