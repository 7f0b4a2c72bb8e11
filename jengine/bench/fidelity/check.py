"""Checks one draw of a text model on one implementation, against transformers.

A prompt alone; one that begins with its blocks, which are in the prefix cache; and two together, of
which the second one's prompt is cut into chunks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jengine.adapters import LoRARequest
from jengine.api.llm import LLM
from jengine.bench.fidelity.answers import ANSWER, GreedyAnswer, compared, compared_routed, greedy
from jengine.bench.fidelity.check_conditional import check_conditional
from jengine.bench.fidelity.check_encoders import check_encoder
from jengine.bench.fidelity.conditional import CONDITIONAL
from jengine.bench.fidelity.draws import drawn
from jengine.bench.fidelity.encoders import ENCODERS
from jengine.bench.fidelity.families import FAMILIES
from jengine.bench.fidelity.found import ILL_CONDITIONED, DrawError
from jengine.bench.fidelity.generic import drawn_generic
from jengine.bench.fidelity.implementations import COMPILED_ONCE, Implementation
from jengine.bench.fidelity.transformers_process import Transformers
from jengine.bench.fidelity.variations import Settings
from jengine.config import ExpertsConfig
from jengine.errors import ConfigError
from jengine.models.importing.meanings import MEANINGS, PLAIN_MEANING
from jengine.weights.folder import read_model_config

PROMPT, BLOCK, CHUNK = 40, 16, 64
LARGEST_TOKEN = 88  # of the smallest vocabulary that is drawn
# Chunks of gated delta nets are sums in another order than torch's, which norms of small numbers
# behind them enlarge at single positions: up to 1.2e-4 from float64 where torch is 2.6e-5, with
# root mean squares of 6e-6 and 1e-6 (draw 0 of qwen3_5_moe).
DELTA_NETS = frozenset(("qwen3_next", "qwen3_5", "qwen3_5_moe"))
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_logprobs": -1,
    "max_model_len": PROMPT + ANSWER + 2,
    "max_num_seqs": 4,
    "num_gpu_blocks_override": 32,
    "block_size": BLOCK,
    "show_progress": False,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [CHUNK], **COMPILED_ONCE},
}


def check(theirs: Transformers, family: str, number: int, how: Implementation) -> DrawError:
    """Check the draw with this number. Raises JengineError if either side rejects the config."""
    if family in ENCODERS:
        return check_encoder(theirs, family, number, how)
    if family in CONDITIONAL:
        return check_conditional(theirs, family, number, how)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = drawn_of(theirs, family, number)
        theirs.write(
            folder, FAMILIES.get(family, family), settings, seed=number, dtype=how.dtype,
            unscaled=family == "gemma4", largest_code=how.largest_code,
            adapter_rank=how.adapter_rank,
        )  # fmt: skip
        prompts = prompts_of(number)
        experts = experts_of(folder) if how.rounding and family in FAMILIES else {}
        answers = answered(folder, prompts, how, returns_experts=bool(experts))
        refuse_padding(family, answers)
        texts = [prompt + one.tokens for prompt, one in zip(prompts, answers, strict=True)]
        if routed := beside_routes(theirs, folder, texts, answers, experts, how):
            return routed
        truth = folder / "merged" if how.adapter_rank else folder
        found = compared(partial(theirs.score, truth, texts), answers, how)
    if family in DELTA_NETS and not found.passed and not how.rounding:
        note = f"ill-conditioned: gated delta nets, {found.note}"
        return DrawError(found.error, ILL_CONDITIONED, note)
    return found


def drawn_of(theirs: Transformers, family: str, number: int) -> Settings:
    """The draw with this number; a class of the generic reader is its own family."""
    if family in FAMILIES:
        return drawn(family, number)
    return drawn_generic(family, theirs.config(family, {}), number)


def refuse_padding(family: str, answers: Sequence[GreedyAnswer]) -> None:
    """Raise ConfigError if an answer has the token that RoBERTa's positions leave out of the count:
    behind it transformers differs from itself, since it counts the token once its keys are
    cached."""
    padding = MEANINGS.get(family, PLAIN_MEANING).fixed.get("pad_token_id")
    if any(padding in one.tokens for one in answers):
        raise ConfigError(f"an answer has the padding token, {padding}. Draw another number.")


def prompts_of(number: int) -> list[list[int]]:
    """Four prompts; the second shares a prefix with the first."""
    rng = np.random.default_rng(number)
    first, second, *rest = (rng.integers(3, LARGEST_TOKEN, PROMPT).tolist() for _ in range(4))
    return [first, first[: 2 * BLOCK + 1] + second[2 * BLOCK + 1 :], *rest]


def answered(
    folder: Path,
    prompts: Sequence[list[int]],
    how: Implementation,
    *,
    returns_experts: bool = False,
) -> list[GreedyAnswer]:
    adapter = LoRARequest("drawn", 1, str(folder / "adapter")) if how.adapter_rank else None
    settings = {**SETTINGS, **how.settings, "dtype": how.dtype}
    with LLM(folder, enable_return_routed_experts=returns_experts, **settings) as llm:
        return greedy(llm, prompts, adapter)


def experts_of(folder: Path) -> dict[int, ExpertsConfig]:
    """The experts of each layer that has some; none if the numbers of layers differ."""
    layers = enumerate(read_model_config(folder).layers)
    found = {place: one.ffn for place, one in layers if isinstance(one.ffn, ExpertsConfig)}
    numbers = {(one.num_experts, one.experts_per_token) for one in found.values()}
    return found if len(numbers) == 1 else {}


def beside_routes(
    theirs: Transformers, folder: Path, texts: Sequence[list[int]], answers: Sequence[GreedyAnswer],
    experts: Mapping[int, ExpertsConfig], how: Implementation,
) -> DrawError | None:  # fmt: skip
    """The result for a model with experts whose rounding may choose others; None: it has none."""
    if not experts:
        return None
    one = next(iter(experts.values()))
    scores = partial(
        theirs.score_routed, folder, [text[:-1] for text in texts],
        num_experts=one.num_experts, chosen=one.experts_per_token,
    )  # fmt: skip
    return compared_routed(scores, answers, list(experts), how)
