"""One draw on one implementation: log-probabilities and greedy tokens against transformers.

A prompt alone; one that begins with its blocks, which are in the prefix cache; and two together, of
which the second one's prompt is cut into chunks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jengine.adapters import LoRARequest
from jengine.api.llm import LLM
from jengine.bench.fidelity.check_encoders import check_encoder
from jengine.bench.fidelity.draws import drawn
from jengine.bench.fidelity.encoders import ENCODERS
from jengine.bench.fidelity.families import FAMILIES
from jengine.bench.fidelity.found import (
    ILL_CONDITIONED,
    LIMIT,
    Found,
    beside_float64,
    distance,
    spread,
)
from jengine.bench.fidelity.implementations import NOT_KEPT, Implementation
from jengine.bench.fidelity.transformers_process import Transformers
from jengine.outputs import RequestOutput
from jengine.research.ours import decoded, finished, scored, teacher_forced
from jengine.sampling_params import SamplingParams

PROMPT, ANSWER, BLOCK, CHUNK = 40, 8, 16, 64
LARGEST_TOKEN = 88  # of the smallest vocabulary that is drawn
# Chunks of gated delta nets are sums in another order than torch's, which norms of small numbers
# behind them enlarge at single positions: up to 1.2e-4 from float64 where torch is 2.6e-5, with
# root mean squares of 6e-6 and 1e-6 (draw 0 of qwen3_5_moe).
DELTA_NETS = frozenset(("qwen3_next", "qwen3_5", "qwen3_5_moe"))
# Root mean squares of the errors of ours and of torch's in bfloat16, which round at other places.
AS_ROUNDED = 1.1
SETTINGS = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_logprobs": -1,
    "max_model_len": PROMPT + ANSWER + 2,
    "max_num_seqs": 4,
    "num_gpu_blocks_override": 32,
    "block_size": BLOCK,
    "show_progress": False,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [CHUNK], **NOT_KEPT},
}


def check(theirs: Transformers, family: str, number: int, how: Implementation) -> Found:
    """The draw with this number; JengineError where either side refuses it."""
    if family in ENCODERS:
        return check_encoder(theirs, family, number, how)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs.write(
            folder, FAMILIES[family], drawn(family, number), seed=number, dtype=how.dtype,
            unscaled=family == "gemma4", largest_code=how.largest_code,
            adapter_rank=how.adapter_rank,
        )  # fmt: skip
        prompts = prompts_of(number)
        answers = answered(folder, prompts, how)
        texts = [prompt + one.tokens for prompt, one in zip(prompts, answers, strict=True)]
        truth = folder / "merged" if how.adapter_rank else folder
        found = compared(theirs, truth, texts, answers, how)
    if family in DELTA_NETS and not found.passed and not how.rounding:
        note = f"ill-conditioned: gated delta nets, {found.note}"
        return Found(found.error, ILL_CONDITIONED, note)
    return found


def prompts_of(number: int) -> list[list[int]]:
    """Four prompts, of which the second begins as the first."""
    rng = np.random.default_rng(number)
    first, second, *rest = (rng.integers(3, LARGEST_TOKEN, PROMPT).tolist() for _ in range(4))
    return [first, first[: 2 * BLOCK + 1] + second[2 * BLOCK + 1 :], *rest]


class Answer(NamedTuple):
    """Greedy tokens, and the log-probabilities of the sequence's last positions."""

    tokens: list[int]
    rows: np.ndarray


def answered(folder: Path, prompts: Sequence[list[int]], how: Implementation) -> list[Answer]:
    """Ours."""
    first, second, *rest = prompts
    adapter = LoRARequest("drawn", 1, str(folder / "adapter")) if how.adapter_rank else None
    with LLM(folder, **{**SETTINGS, **how.settings, "dtype": how.dtype}) as llm:
        outputs = [
            output
            for some, params in (
                ([first], scored(ANSWER)), ([second], of_answer()), (rest, scored(ANSWER))
            )
            for output in llm.generate(some, params, use_tqdm=False, lora_request=adapter)
        ]  # fmt: skip
    return [as_answer(finished(output)) for output in outputs]


def of_answer() -> SamplingParams:
    """As `scored`, but for the prompt, whose scores would be computed without the prefix cache."""
    given = scored(ANSWER)
    given.prompt_logprobs = None
    return given


def as_answer(output: RequestOutput) -> Answer:
    """The rows of the prompt, where they were asked for, and of the answer."""
    rows = decoded(output)
    if output.prompt_logprobs is not None:
        rows = np.concatenate([teacher_forced(output)[:-1], rows])
    return Answer(list(output.outputs[0].token_ids), rows)


def compared(
    theirs: Transformers, folder: Path, texts: Sequence[list[int]], answers: Sequence[Answer],
    how: Implementation,
) -> Found:  # fmt: skip
    """The largest difference of log-probabilities; tokens that are not the likeliest count too."""
    expected = theirs.score(folder, texts)
    if how.rounding:
        rounded = theirs.score(folder, texts, **how.rounding)
        limit = AS_ROUNDED * spread(own_rows(rounded, answers), own_rows(expected, answers))
        return Found(spread([one.rows for one in answers], own_rows(expected, answers)), limit)
    if not all(np.isfinite(one.rows).all() for one in answers):
        return Found(float("inf"), LIMIT, "numbers that are not finite")
    ours = [one.rows for one in answers]
    error = max(distance(ours, own_rows(expected, answers)), worse_than_best(answers, expected))
    if error <= LIMIT:
        return Found(error, LIMIT)
    exact = theirs.score(folder, texts, dtype="float64")
    found = beside_float64(ours, own_rows(expected, answers), own_rows(exact, answers))
    return found._replace(error=max(found.error, worse_than_best(answers, exact)))


def own_rows(scores: np.ndarray, answers: Sequence[Answer]) -> list[np.ndarray]:
    """The positions of which an answer has rows: those before the last token."""
    return [row[:-1][-len(one.rows) :] for row, one in zip(scores, answers, strict=True)]


def worse_than_best(answers: Sequence[Answer], expected: np.ndarray) -> float:
    """How far below the likeliest token one of an answer's tokens is, by half: both may be off."""
    found = 0.0
    for one, rows in zip(answers, own_rows(expected, answers), strict=True):
        last = rows[-ANSWER:]
        chosen = np.take_along_axis(last, np.asarray(one.tokens)[:, None], axis=1)[:, 0]
        found = max(found, float((last.max(1) - chosen).max()) / 2)
    return found
