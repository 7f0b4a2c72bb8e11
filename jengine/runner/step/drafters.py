"""Drafters on the device: draft models (sequential or parallel), EAGLE, MTP and Medusa heads.

In: DrafterInput. Out: draft tokens for the next step, and the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from jengine.runner.step.draft_stage import Drafter, DrafterInput

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32

    Drafts = tuple[Int32[Array, "rows drafts"], tuple[Array, ...]]


@dataclass(frozen=True)
class DraftModel:
    """A smaller language model that decodes from the last token."""

    model: Any

    def __call__(self, given: DrafterInput) -> Drafts:
        # All tokens of the step, so that the draft model's KV cache is complete whichever drafts
        # were accepted.
        context = given.again(given.state.caches)
        self.model(given.ran.tokens, context)
        tokens, caches, next_drafts = given.ends.tokens, context.caches, []
        for index in range(given.most):
            positions = given.wanted(index)
            context = given.decode(positions, caches)
            hidden = self.model(tokens, context)
            caches = context.caches
            tokens = given.draw(self.model.live_logits(hidden, positions), index)
            next_drafts.append(tokens)
            tokens = jnp.maximum(tokens, 0)
        return jnp.stack(next_drafts, axis=1), caches


@dataclass(frozen=True)
class ParallelDraftModel:
    """A draft model trained to propose several tokens in one pass (PARD), from `mask` tokens after
    the last one."""

    model: Any
    mask: int

    def __call__(self, given: DrafterInput) -> Drafts:
        context = given.again(given.state.caches)
        self.model(given.ran.tokens, context)
        tokens = jnp.full((len(given.ends.tokens), given.most), self.mask, jnp.int32)
        tokens = tokens.at[:, 0].set(given.ends.tokens)
        # Cached mask tokens are overwritten once real tokens run at their positions.
        positions = jnp.stack([given.wanted(index) for index in range(given.most)], axis=1)
        context = given.decode(positions.reshape(-1), context.caches)
        hidden = self.model(tokens.reshape(-1), context)
        logits = self.model.live_logits(hidden, positions.reshape(-1))
        logits = logits.reshape(*positions.shape, -1)
        next_drafts = [given.draw(logits[:, index], index) for index in range(given.most)]
        return jnp.stack(next_drafts, axis=1), context.caches


@dataclass(frozen=True)
class DecodingHead:
    """Decoder layers on the model's hidden states (EAGLE, EAGLE-3, MTP). A hidden state sits at its
    token's position, paired with the next token."""

    model: Any

    def __call__(self, given: DrafterInput) -> Drafts:
        context, target = given.again(given.state.caches), given.target
        read = self.model.states(given.ran.hidden, given.ran.kept, context.live)
        states = self.model(given.next_tokens(), read, context, target)
        caches, next_drafts = context.caches, []
        # At the last computed position, whose input was paired with the sampled token.
        hidden = states[given.inputs.heads.logit_index[given.ends.slots]]
        for index in range(given.most):
            live = given.wanted(index)
            if index:
                # One position before the token, which is paired with the hidden state there.
                positions = jnp.where(live > 0, live - 1, -1)
                context = given.decode(positions, caches)
                hidden = self.model(jnp.maximum(next_drafts[-1], 0), hidden, context, target)
                caches = context.caches
            logits = self.model.logits(hidden, live, target)
            next_drafts.append(given.draw(logits, index))
        return jnp.stack(next_drafts, axis=1), caches


@dataclass(frozen=True)
class MedusaHeads:
    """Heads on the hidden state that the last token was sampled from; no cache."""

    model: Any

    def __call__(self, given: DrafterInput) -> Drafts:
        hidden = given.hidden[given.ends.slots]
        next_drafts = [
            given.draw(head(hidden, given.wanted(index)), index)
            for index, head in enumerate(list(self.model.heads)[: given.most])
        ]
        return jnp.stack(next_drafts, axis=1), given.state.caches


METHODS: dict[str, Callable[[Any], Drafter]] = {
    "draft_model": DraftModel,
    "eagle": DecodingHead,
    "eagle3": DecodingHead,
    "medusa": MedusaHeads,
    "mtp": DecodingHead,
}
