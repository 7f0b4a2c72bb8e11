"""Hidden states of a step: what its heads read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax import Array, lax

from jengine.models.context import Mixer
from jengine.models.language_model import LanguageModel
from jengine.outputs import StepOutput
from jengine.runner.step.adapters import HeadAdapters
from jengine.runner.step.batch import Batch
from jengine.runner.step.program import Program
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import HeadInput, sampling_views
from jengine.sampling import SamplingInput
from jengine.sampling.acceptance import Drafted


class Hidden(NamedTuple):
    """The hidden states of a step, and which of them each head reads."""

    model: Any
    ends: Array  # [S, hidden] at the sampling slots
    prompts: Array  # [T, hidden] at the prefill tokens
    heads: HeadInput
    sampling: SamplingInput  # with every position known
    drafts: Drafted | None = None
    adapters: HeadAdapters | None = None  # of the output head
    batch: Batch | None = None
    token_adapters: Array | None = None  # i32[D + T] the adapter slot of each token

    @property
    def end_adapters(self) -> Array | None:
        """i32[S] the adapter slots of the sampling slots."""
        return None if self.token_adapters is None else self.token_adapters[self.heads.logit_index]


def logits_of(
    model: Any,
    rows: Array,
    live: Array | None,
    adapters: HeadAdapters | None = None,
    slots: Array | None = None,
) -> Array:
    """f32 [rows, vocab]: logits of these hidden states, whose adapters are in these slots. Rows
    where `live` is -1 may be left out."""
    if adapters is not None and slots is not None:
        return model.adapted_logits(rows, live, adapters.added(rows, slots))
    if live is None or not isinstance(model, LanguageModel):
        return model.logits(rows)
    return model.live_logits(rows, live)


class Ran(NamedTuple):
    """All tokens that a step ran: D decode rows, then T prefill tokens."""

    tokens: Array  # i32[D + T]
    hidden: Array  # f32[D + T, hidden] after the last norm
    batch: Batch
    token_rows: Array  # i32[D + T] the query tile of each token
    mixer: Mixer  # attention among them and what the cache holds
    kept: Mapping[str, Array]  # tap point -> f32[D + T, hidden], those that the guesser reads


class SlotInput(NamedTuple):
    """What a forward hands on about its S sampling slots."""

    ends: Any  # f32[S, hidden]
    section: Any  # i32[...] the sampler's section of the packed plan
    positions: Any  # i32[S] where each sampled token will stand
    drafts: Drafted | None  # None: the engine runs none
    adapters: Any  # i32[S] adapter slots; None: the engine has none

    def sampling(self, program: Program) -> SamplingInput:
        """The sampler's input, with every position known."""
        views = sampling_views(self.section, len(self.ends), program.shapes)
        return views._replace(positions=self.positions)


class Forwarded(NamedTuple):
    """The results of a forward."""

    slots: SlotInput
    captured: dict[int, dict[str, Any]]  # as in StepOutput
    experts: Any

    def completing(self, output: StepOutput) -> StepOutput:
        """The results of a head, with the forward's own."""
        return output._replace(captured=self.captured, experts=self.experts)


def with_prompts(state: StepState, prompts: Array) -> StepState:
    """The state with the hidden states [..., T, hidden] of prompt tokens, where it keeps them."""
    if state.prompts is None or not prompts.shape[-2]:
        return state
    kept = lax.dynamic_update_slice_in_dim(state.prompts, prompts, 0, -2)
    return state._replace(prompts=kept)
