"""The methods of guessing: a draft model, an EAGLE head, Medusa heads.

In: what a step ran and sampled. Out: guesses at the tokens that follow, and the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from jengine.runner.step.guessing import Guesser, Guessing

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32

    Guesses = tuple[Int32[Array, "rows drafts"], tuple[Array, ...]]


@dataclass(frozen=True)
class DraftModel:
    """A smaller language model, which decodes on its own from the last token on."""

    model: Any

    def __call__(self, given: Guessing) -> Guesses:
        """The guesses for each row, and the caches."""
        # Whatever the step ran, so that the model's own cache is right wherever the row goes on.
        context = given.again(given.state.caches)
        self.model(given.ran.tokens, context)
        tokens, caches, guesses = given.ends.tokens, context.caches, []
        for index in range(given.most):
            positions = given.wanted(index)
            context = given.decode(positions, caches)
            hidden = self.model(tokens, context)
            caches = context.caches
            tokens = given.draw(self.model.live_logits(hidden, positions), index)
            guesses.append(tokens)
            tokens = jnp.maximum(tokens, 0)
        return jnp.stack(guesses, axis=1), caches


@dataclass(frozen=True)
class EagleHead:
    """A decoder layer on the model's hidden states. The place of a hidden state is that of its
    token; beside it stands the token after that one."""

    model: Any

    def __call__(self, given: Guessing) -> Guesses:
        """The guesses for each row, and the caches."""
        context = given.again(given.state.caches)
        states = self.model(given.next_tokens(), given.ran.hidden, context)
        caches, guesses = context.caches, []
        # After the last token that was computed: the hidden state of the one that was sampled.
        hidden = states[given.hidden.heads.logit_index[given.ends.slots]]
        for index in range(given.most):
            live = given.wanted(index)
            if index:
                # One place before the token, as its hidden state is guessed from there.
                positions = jnp.where(live > 0, live - 1, -1)
                context = given.decode(positions, caches)
                hidden = self.model(jnp.maximum(guesses[-1], 0), hidden, context)
                caches = context.caches
            logits = given.hidden.model.live_logits(hidden, live)
            guesses.append(given.draw(logits, index))
        return jnp.stack(guesses, axis=1), caches


@dataclass(frozen=True)
class MedusaHeads:
    """Heads on the hidden state from which the last token was sampled. They have no cache."""

    model: Any

    def __call__(self, given: Guessing) -> Guesses:
        """The guesses for each row, and the caches."""
        hidden = given.hidden.ends[given.ends.slots]
        guesses = [
            given.draw(head(hidden, given.wanted(index)), index)
            for index, head in enumerate(list(self.model.heads)[: given.most])
        ]
        return jnp.stack(guesses, axis=1), given.state.caches


METHODS: dict[str, Callable[[Any], Guesser]] = {
    "draft_model": DraftModel,
    "eagle": EagleHead,
    "medusa": MedusaHeads,
}
