"""Compares the engine with torch, from prompts to a Comparison.

In: a model folder or a live engine, and options. Out: a Comparison. The reference is made first,
so that what is wrong with it is known before an engine starts.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jengine
from jengine.api.llm import LLM
from jengine.config import ModelConfig
from jengine.errors import ConfigError, unknown_argument
from jengine.research.bundle import read_bundle
from jengine.research.comparison import Comparison
from jengine.research.engine_run import SETTINGS, run_prompt
from jengine.research.measure import (
    continuation_results,
    given_logprobs,
    logit_result,
    point_results,
)
from jengine.research.model_under_test import ModelUnderTest, engine_under_test, folder_under_test
from jengine.research.options import TORCH, Options, check_options, wanted_points
from jengine.research.prompts import built_in, tokenized
from jengine.research.results import LOGITS, Inputs, Results, SweepResult
from jengine.research.runs import ModelFacts, Reference, Run
from jengine.research.sweeps import Yardstick, run_sweeps
from jengine.research.torch_process import ReferenceJob, find_python, make_bundle, wider
from jengine.research.verdict import NOISE, noise_limit
from jengine.weights.save import new_folder
from sharding.jax_settings import matmul_precision

MOST_ROWS = 8
# Tokens of one step at most: longer prompts run in pieces.
STEP_TOKENS = 512


def compare_folder(
    model: str | Path, options: Options, settings: Mapping[str, Any] | None = None,
    open_llm: Callable[..., LLM] = LLM,
) -> Comparison:  # fmt: skip
    """Compare the model in a folder; `settings` are those of an engine."""
    return compare_subject(folder_under_test(model, settings or {}, open_llm), options)


def compare(llm: LLM, against: str | Path = TORCH, **given: Any) -> Comparison:
    """Compare the parameters that an engine uses now; see Options for what may be given."""
    known = {item.name for item in fields(Options)} - {"against", "command", "note"}
    for name in given:
        if name not in known:
            raise unknown_argument("compare", name, known)
    return compare_subject(engine_under_test(llm), Options(against=against, **given))


def compare_subject(subject: ModelUnderTest, options: Options) -> Comparison:
    check_options(options)
    points = wanted_points(subject.config, options.points)
    reference = make_reference(subject, options)
    check_same_model(reference, subject.config, points)
    options.note(f"Running jengine in {reference.dtype} ...")
    with subject.open(**engine_settings(subject.config, reference)) as llm:
        ours = [
            run_prompt(llm, ids, points, columns, reference.new_tokens)
            for ids, columns in zip(reference.prompts, reference.columns, strict=True)
        ]
        environment, codes = describe(llm, reference), llm.engine.args.cache_codes
        outliers_count = not subject.config.has_experts
        tensors = point_results(reference, ours, points, outliers_count=outliers_count)
        sweeps: list[SweepResult] = []
        if options.sweeps:
            options.note("Comparing jengine with itself: batches, chunks, decoding, cached prompts")
            measure = Yardstick(tensors[-1].peer.relative, reference.dtype, outliers_count)
            sweeps = run_sweeps(llm, reference.prompts, reference.new_tokens, measure)
    columns = reference.columns
    results = Results(
        inputs=Inputs(
            model=subject.name,
            architecture=reference.model.architecture,
            dtype=reference.dtype,
            truth_dtype=reference.truth_dtype,
            prompts=reference.prompts,
            vocabulary=token_texts(subject, reference, ours),
            command=options.command,
        ),
        points=tensors,
        ours=logit_result(ours, reference.truth, columns),
        peer=logit_result(reference.working, reference.truth, columns),
        apart=logit_result(ours, reference.working, columns),
        given={
            "truth": given_logprobs(reference.truth),
            "torch": given_logprobs(reference.working),
            "ours": given_logprobs(ours),
        },
        continuations=continuation_results(reference, ours),
        sweeps=sweeps,
        environment=environment,
        notes=notes(subject.config, reference, codes),
    )
    return Comparison(results)


def engine_settings(config: ModelConfig, reference: Reference) -> dict[str, Any]:
    """Settings of an engine for these prompts: room for them and their answers, no more."""
    longest = max(map(len, reference.prompts)) + max(reference.new_tokens, 1) + 1
    return {
        **SETTINGS,
        "max_model_len": min(longest, config.longest_context),
        "max_num_seqs": min(len(reference.prompts), MOST_ROWS),
        "max_num_batched_tokens": min(longest + MOST_ROWS, STEP_TOKENS),
    }


def describe(llm: LLM, reference: Reference) -> dict[str, str]:
    """Versions, device and settings behind the numbers."""
    device = jax.devices()[0]
    args = llm.engine.args
    return {
        "jengine": jengine.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform} ({device.device_kind})",
        "matmul precision": matmul_precision(),
        "deterministic": str(args.deterministic),
        "step": f"{llm.engine.schedule.max_num_batched_tokens} tokens, "
        f"{llm.engine.schedule.max_num_seqs} rows",
        **{f"reference: {name}": value for name, value in reference.software.items()},
    }


def token_texts(subject: ModelUnderTest, reference: Reference, ours: Run) -> dict[int, str]:
    """The text of every token in prompts and continuations; empty without a tokenizer."""
    tokenizer = subject.tokenizer
    if tokenizer is None:
        return {}
    seen = {token for ids in reference.prompts for token in ids}
    for run in (reference.truth, reference.working, ours):
        seen |= {token for prompt in run for token in prompt.continuation.tokens}
    return {token: tokenizer.decode([token], skip_special_tokens=False) for token in seen}


def notes(config: ModelConfig, reference: Reference, codes: str | None = None) -> list[str]:
    """Remarks on how to read these numbers. `codes`: what jengine's KV cache holds in place of
    plain numbers."""
    dtype, truth = reference.dtype, reference.truth_dtype
    found = [
        f"All three use the same weights, rounded to {dtype}; the truth widens them to {truth} and "
        f"computes there. So errors are those of arithmetic in {dtype}, not of rounding weights."
    ]
    if config.quantization is not None and config.quantization.on_load:
        values = config.quantization.groups[0][1].weights.values
        found = [
            f"Only jengine's weights are rounded to {values}: its errors against the truth are "
            f"what {values} costs, and those of torch what {dtype} costs."
        ]
    if codes is not None:
        found.append(
            f"Only jengine keeps keys and values in {codes}: its errors include what that costs."
        )
    positions = sum(map(len, reference.prompts))
    if noise_limit(positions) > NOISE:
        found.append(
            f"There are only {positions} positions, so that chance moves the ratios: up to "
            f"{noise_limit(positions):.2f} counts as noise here. Longer prompts say more."
        )
    if truth != "float64":
        found.append(
            f"What is smaller than the noise of {dtype} does not show here, a rotation that is off "
            "by a percent for example. Compare float32 as well: its noise is far smaller."
        )
    if truth == "float64":
        found.append(
            "transformers computes norms and rotations in float32 even in a float64 model, which "
            "bounds how true the truth is."
        )
    if config.has_experts:
        found.append(
            "The model has experts: where the router's scores nearly tie, a token goes to another "
            "expert and its error is large for either side. Single positions are not judged."
        )
    if any(columns is not None for columns in reference.columns):
        kept = max(columns.shape[1] for columns in reference.columns if columns is not None)
        found.append(
            f"The reference keeps the {kept} likeliest tokens of each position. Divergences count "
            f"all others as one token; '{LOGITS}' are the logits that are kept."
        )
    return found


def make_reference(subject: ModelUnderTest, options: Options) -> Reference:
    """The reference run: a saved bundle, or computed by torch now."""
    if options.against != TORCH:
        return read_bundle(Path(options.against).expanduser())
    python = find_python(options.torch_python)
    prompts = prompt_ids(subject, options)
    dtype = subject.config.dtype
    with bundle_folder(options.save_bundle) as out, subject.exported() as model:
        truth = wider(dtype)
        options.note(f"Running torch in {truth} and {dtype} ...")
        job = ReferenceJob(
            model=str(model),
            dtype=dtype,
            truth_dtype=truth,
            device=options.torch_device,
            prompts=prompts,
            new_tokens=options.new_tokens,
            out=str(out),
        )
        make_bundle(python, job)
        return read_bundle(out)


@contextmanager
def bundle_folder(wanted: str | Path | None) -> Iterator[Path]:
    """The bundle's folder, as given or temporary."""
    if wanted is not None:
        with new_folder(wanted) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def prompt_ids(subject: ModelUnderTest, options: Options) -> list[list[int]]:
    """The prompts as token ids that fit the model."""
    encode = None if subject.tokenizer is None else subject.tokenizer.encode
    config = subject.config
    given = options.prompts
    if given is None:
        given = built_in(encode, config.vocab_size)
    # One token more than the continuation: an answer has at least one.
    longest = config.longest_context - max(options.new_tokens, 1) - 1
    return tokenized(given, encode, config.vocab_size, longest)


def check_same_model(reference: Reference, config: ModelConfig, points: Sequence[str]) -> None:
    """A bundle of another model, dtype or selection cannot be compared with."""
    own = ModelFacts(config.architecture, config.vocab_size, config.hidden_size, len(config.layers))
    for name, expected in vars(own).items():
        found = vars(reference.model)[name]
        if found != expected:
            raise ConfigError(
                f"the bundle is of another model: its {name} is {found!r}, this model's is "
                f"{expected!r}. Make one of this model: --against torch --save-bundle FOLDER."
            )
    if reference.dtype != config.dtype:
        raise ConfigError(
            f"the bundle compares {reference.dtype}, and this model runs in {config.dtype}. Give "
            f"dtype={reference.dtype!r}, or make a bundle for {config.dtype}."
        )
    seen = reference.truth[0].points
    lacking = [name for name in points if name not in seen]
    if lacking:
        raise ConfigError(
            f"the bundle holds no values of {lacking[0]!r}. It has: {', '.join(seen)}."
        )
