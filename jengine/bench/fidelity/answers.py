"""Greedy answers with log-probabilities at every position, compared with those of transformers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jengine.adapters import LoRARequest
from jengine.api.llm import LLM
from jengine.bench.fidelity.found import LIMIT, Found, beside_float64, distance, spread
from jengine.bench.fidelity.implementations import Implementation
from jengine.outputs import RequestOutput
from jengine.research.engine_run import decoded, finished, scored, teacher_forced

ANSWER = 8  # tokens
Rows = Sequence[np.ndarray] | np.ndarray  # [positions, vocab] of each sequence
# Root mean squares of the errors of ours and of torch's in bfloat16, which round at other places.
AS_ROUNDED = 1.1


class Answer(NamedTuple):
    """Greedy tokens, and log-probabilities at the sequence's last positions."""

    tokens: list[int]
    rows: np.ndarray


def until(answer: Answer, ends: Collection[int]) -> Answer:
    """Truncate an answer after the first of these tokens."""
    count = next(
        (at + 1 for at, one in enumerate(answer.tokens) if one in ends), len(answer.tokens)
    )
    left = len(answer.rows) - (len(answer.tokens) - count)
    return Answer(answer.tokens[:count], answer.rows[:left])


class Scores(Protocol):
    """transformers' scores of the same sequences."""

    def __call__(self, *, dtype: str = "float32", cache: str = "none") -> Rows:
        """Log-probabilities after each token, computed in this dtype, optionally with an int8 KV
        cache."""
        ...


def greedy(llm: LLM, prompts: Sequence[Any], adapter: LoRARequest | None = None) -> list[Answer]:
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


def as_answer(output: RequestOutput) -> Answer:
    """Log-probabilities of the prompt, if requested, and of the answer."""
    rows = decoded(output)
    if output.prompt_logprobs is not None:
        rows = np.concatenate([teacher_forced(output)[:-1], rows])
    return Answer(list(output.outputs[0].token_ids), rows)


def compared(scores: Scores, answers: Sequence[Answer], how: Implementation) -> Found:
    """Largest difference of log-probabilities; a token that is not the argmax counts as a
    difference too."""
    expected = scores()
    if how.rounding:
        rounded = scores(**how.rounding)
        limit = AS_ROUNDED * spread(own_rows(rounded, answers), own_rows(expected, answers))
        return Found(spread([one.rows for one in answers], own_rows(expected, answers)), limit)
    if not all(np.isfinite(one.rows).all() for one in answers):
        return Found(float("inf"), LIMIT, "numbers that are not finite")
    ours = [one.rows for one in answers]
    error = max(distance(ours, own_rows(expected, answers)), worse_than_best(answers, expected))
    if error <= LIMIT:
        return Found(error, LIMIT)
    exact = scores(dtype="float64")
    found = beside_float64(ours, own_rows(expected, answers), own_rows(exact, answers))
    return found._replace(error=max(found.error, worse_than_best(answers, exact)))


def own_rows(scores: Rows, answers: Sequence[Answer]) -> list[np.ndarray]:
    """Positions whose log-probabilities an answer has: all before the last token."""
    return [row[:-1][-len(one.rows) :] for row, one in zip(scores, answers, strict=True)]


def worse_than_best(answers: Sequence[Answer], expected: Rows) -> float:
    """Half the margin by which an answer's token falls below the argmax (both sides may be off by
    that much)."""
    found = 0.0
    for one, rows in zip(answers, own_rows(expected, answers), strict=True):
        last = rows[-len(one.tokens) :]
        chosen = np.take_along_axis(last, np.asarray(one.tokens)[:, None], axis=1)[:, 0]
        found = max(found, float((last.max(1) - chosen).max()) / 2)
    return found
