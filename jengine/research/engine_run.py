"""The engine's side: the same tokens through an engine, as a Run, and full logits for sweeps.

In: an engine that may be asked for the whole vocabulary. Out: arrays. An engine returns
log-probabilities, which are logits whose log-sum-exp is (nearly) zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jengine.api.llm import LLM
from jengine.errors import RequestError
from jengine.outputs import RequestOutput, StepLogprobs
from jengine.research.runs import Continuation, PromptRun
from jengine.sampling_params import SamplingParams

# Most likely tokens that are kept of every distribution.
TOP = 20
# Engine settings that the comparison needs.
SETTINGS = {"max_logprobs": -1, "enforce_eager": True}


def run_prompt(
    llm: LLM, ids: list[int], points: Sequence[str], columns: np.ndarray | None, new_tokens: int
) -> PromptRun:
    """One prompt alone: values at tap points, logits at every position, a continuation."""
    wanted = scored(max(new_tokens, 1))
    (output,) = llm.generate([ids], wanted, use_tqdm=False, capture=points or None)
    logits = teacher_forced(finished(output))
    kept = logits if columns is None else np.take_along_axis(logits, columns, axis=-1)
    following = np.asarray(ids[1:], np.int64)
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :TOP]
    captured = output.captured or {}
    return PromptRun(
        points={name: captured[name][: len(ids)] for name in points},
        logits=kept,
        normalizer=normalizer(logits),
        given=np.take_along_axis(logits[:-1], following[:, None], axis=-1)[:, 0],
        top=best.astype(np.int32),
        continuation=continuation(output, new_tokens),
    )


def scored(tokens: int) -> SamplingParams:
    """Greedy decoding of `tokens` tokens with all log-probabilities of prompt and answer."""
    return SamplingParams(
        temperature=0,
        max_tokens=tokens,
        ignore_eos=True,
        prompt_logprobs=-1,
        logprobs=-1,
        flat_logprobs=True,
        detokenize=False,
    )


def teacher_forced(output: RequestOutput) -> np.ndarray:
    """Logits after each token of the prompt, [T, vocab]; the last row made the first answer."""
    prompt, answer = output.prompt_logprobs, answer_table(output)
    assert isinstance(prompt, StepLogprobs), "scores were asked for, flat"
    return full_logits(
        StepLogprobs.joined([prompt, answer.cut(0, 1)] if len(prompt.rank) else [answer.cut(0, 1)])
    )


def decoded(output: RequestOutput) -> np.ndarray:
    """Logits that made each token of the answer, [steps, vocab]."""
    return full_logits(answer_table(output))


def answer_table(output: RequestOutput) -> StepLogprobs:
    """Per-step scores of all tokens, as returned with logprobs=-1."""
    table = output.outputs[0].logprobs
    assert isinstance(table, StepLogprobs), "scores were asked for, flat"
    return table


def full_logits(table: StepLogprobs) -> np.ndarray:
    """Rows by token id, from rows that are sorted by value behind the chosen token."""
    ids, values = table.ids[:, 1:], table.values[:, 1:]
    logits = np.empty(values.shape, np.float32)
    np.put_along_axis(logits, ids.astype(np.int64), values, axis=-1)
    return logits


def normalizer(logits: np.ndarray) -> np.ndarray:
    """Log of the sum of exponentials over the vocabulary."""
    exact = logits.astype(np.float64)
    most = exact.max(-1)
    return (np.log(np.exp(exact - most[:, None]).sum(-1)) + most).astype(np.float32)


def continuation(output: RequestOutput, steps: int) -> Continuation:
    """The answer as greedy steps."""
    table = answer_table(output).cut(0, steps)
    ids, logits = table.ids[:, 1 : 1 + TOP], table.values[:, 1 : 1 + TOP]
    return Continuation(list(output.outputs[0].token_ids[:steps]), ids, logits)


def finished(output: RequestOutput) -> RequestOutput:
    """The output, or an error if its request failed."""
    if output.error:
        raise RequestError(
            f"the engine could not answer a prompt of the comparison: {output.error}"
        )
    return output
