"""The reference of a comparison: what torch computes now, or a saved bundle.

In: a Subject and Options. Out: a Reference of the same model. Must not start engines to compare.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jengine.config import ModelConfig
from jengine.errors import ConfigError
from jengine.research.bundle import read_bundle
from jengine.research.options import TORCH, Options
from jengine.research.prompts import built_in, tokenized
from jengine.research.runs import ModelFacts, Reference
from jengine.research.subject import Subject
from jengine.research.torch_process import Job, find_python, make_bundle, wider
from jengine.weights.save import new_folder


def make_reference(subject: Subject, options: Options) -> Reference:
    """The reference run: a saved bundle, or computed by torch now."""
    if options.against != TORCH:
        return read_bundle(Path(options.against).expanduser())
    python = find_python(options.torch_python)
    prompts = prompt_ids(subject, options)
    dtype = subject.config.dtype
    with bundle_folder(options.save_bundle) as out, subject.exported() as model:
        truth = wider(dtype)
        options.note(f"Running torch in {truth} and {dtype} ...")
        job = Job(
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


def prompt_ids(subject: Subject, options: Options) -> list[list[int]]:
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
