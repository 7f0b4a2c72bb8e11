"""Greedy answers with log-probabilities at every position, compared with those of transformers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jengine.adapters import LoRARequest
from jengine.api.llm import LLM
from jengine.bench.fidelity.found import LIMIT, DrawError, beside_float64, distance, spread
from jengine.bench.fidelity.implementations import Implementation
from jengine.bench.fidelity.transformers_process import Routed
from jengine.outputs import RequestOutput
from jengine.research.engine_run import decoded, finished, scored, teacher_forced

ANSWER = 8  # tokens
Rows = Sequence[np.ndarray] | np.ndarray  # [positions, vocab] of each sequence
# Root mean squares of the errors of ours and of torch's in bfloat16, which round at other places.
AS_ROUNDED = 1.1
# Tokens and layers for which rounding changes the choice of experts, ours beside torch's: a few.
AS_CHANGED, FEW_CHANGED = 2, 8


class GreedyAnswer(NamedTuple):
    """Greedy tokens, and log-probabilities at the sequence's last positions."""

    tokens: list[int]
    rows: np.ndarray
    experts: np.ndarray | None = None  # of all tokens but the last, [tokens, layers, chosen]


def until(answer: GreedyAnswer, ends: Collection[int]) -> GreedyAnswer:
    """Truncate an answer after the first of these tokens."""
    count = next(
        (at + 1 for at, one in enumerate(answer.tokens) if one in ends), len(answer.tokens)
    )
    left = len(answer.rows) - (len(answer.tokens) - count)
    return GreedyAnswer(answer.tokens[:count], answer.rows[:left])


class TransformersScores(Protocol):
    """transformers' scores of the same sequences."""

    def __call__(self, *, dtype: str = "float32", cache: str = "none") -> Rows:
        """Log-probabilities after each token, computed in this dtype, optionally with an int8 KV
        cache."""
        ...


class RoutedScores(Protocol):
    """transformers' scores of the same sequences without their last tokens, and experts."""

    def __call__(
        self, *, experts: np.ndarray | None = None, dtype: str = "float32", cache: str = "none"
    ) -> Routed: ...


def greedy(
    llm: LLM, prompts: Sequence[Any], adapter: LoRARequest | None = None
) -> list[GreedyAnswer]:
    """jengine's answers: the first prompt alone, then the second (prefix cache hit), then the rest
    batched."""
    first, second, *rest = prompts
    # Scores of prompts would be computed without the prefix cache.
    of_answer = scored(ANSWER).clone(prompt_logprobs=None)
    outputs = [
        output
        for some, params in (
            ([first], scored(ANSWER)), ([second], of_answer), (rest, scored(ANSWER))
        )
        for output in llm.generate(some, params, use_tqdm=False, lora_request=adapter)
    ]  # fmt: skip
    return [as_answer(finished(output)) for output in outputs]


def as_answer(output: RequestOutput) -> GreedyAnswer:
    """Log-probabilities of the prompt, if requested, and of the answer."""
    rows = decoded(output)
    if output.prompt_logprobs is not None:
        rows = np.concatenate([teacher_forced(output)[:-1], rows])
    answer = output.outputs[0]
    return GreedyAnswer(list(answer.token_ids), rows, answer.routed_experts)


def compared(
    scores: TransformersScores, answers: Sequence[GreedyAnswer], how: Implementation
) -> DrawError:
    """Largest difference of log-probabilities; a token that is not the argmax counts as a
    difference too."""
    expected = scores()
    if how.rounding:
        rounded = scores(**how.rounding)
        limit = AS_ROUNDED * spread(own_rows(rounded, answers), own_rows(expected, answers))
        return DrawError(spread([one.rows for one in answers], own_rows(expected, answers)), limit)
    if not all(np.isfinite(one.rows).all() for one in answers):
        return DrawError(float("inf"), LIMIT, "numbers that are not finite")
    ours = [one.rows for one in answers]
    error = max(distance(ours, own_rows(expected, answers)), worse_than_best(answers, expected))
    if error <= LIMIT:
        return DrawError(error, LIMIT)
    exact = scores(dtype="float64")
    found = beside_float64(ours, own_rows(expected, answers), own_rows(exact, answers))
    return found._replace(error=max(found.error, worse_than_best(answers, exact)))


def compared_routed(
    scores: RoutedScores,
    answers: Sequence[GreedyAnswer],
    layers: Sequence[int],
    how: Implementation,
) -> DrawError | None:
    """`compared` where answers are rounded and these layers have experts; None if transformers'
    choice of experts is not seen.

    Where two experts score almost the same, rounding chooses between them, and one other expert
    moves a sequence by more than all else that is rounded: draws of one family are as far as
    9 times torch's error from float32 or a tenth of it. So each side is compared with float32 that
    runs the experts which that side ran, and float32 must agree with most of these choices.
    """
    rounding = how.rounding
    rounded = scores(
        dtype=rounding.get("dtype", "float32"), cache=rounding.get("cache", "none")
    )  # fmt: skip
    if rounded.experts.shape[1:2] != (len(layers),):
        return None
    ran = [one.experts for one in answers if one.experts is not None]
    ours = np.stack([one[:, layers] for one in ran]).swapaxes(1, 2)
    beside_ours, beside_theirs = scores(experts=ours), scores(experts=rounded.experts)
    mine = [one.rows for one in answers]
    error = spread(mine, last_rows(beside_ours.rows, answers))
    own = spread(last_rows(rounded.rows, answers), last_rows(beside_theirs.rows, answers))
    changed, usual = beside_ours.replaced, beside_theirs.replaced
    if changed > AS_CHANGED * usual + FEW_CHANGED:
        why = f"other experts than float32's {changed} times, torch {usual}"
        return DrawError(float("inf"), AS_ROUNDED * own, why)
    return DrawError(error, AS_ROUNDED * own)


def last_rows(scores: Rows, answers: Sequence[GreedyAnswer]) -> list[np.ndarray]:
    """Positions whose log-probabilities an answer has, of sequences without their last token."""
    return [row[-len(one.rows) :] for row, one in zip(scores, answers, strict=True)]


def own_rows(scores: Rows, answers: Sequence[GreedyAnswer]) -> list[np.ndarray]:
    """Positions whose log-probabilities an answer has: all before the last token."""
    return last_rows([row[:-1] for row in scores], answers)


def worse_than_best(answers: Sequence[GreedyAnswer], expected: Rows) -> float:
    """Half the margin by which an answer's token falls below the argmax (both sides may be off by
    that much)."""
    found = 0.0
    for one, rows in zip(answers, own_rows(expected, answers), strict=True):
        last = rows[-len(one.tokens) :]
        chosen = np.take_along_axis(last, np.asarray(one.tokens)[:, None], axis=1)[:, 0]
        found = max(found, float((last.max(1) - chosen).max()) / 2)
    return found
