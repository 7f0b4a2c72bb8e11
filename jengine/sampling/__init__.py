"""Sampling: logits to tokens, with penalties, masks, filters and log-probabilities.

In: float32 logits, row state, per-position parameters. Out: tokens and the next row state. Must not
know: requests, plans, how logits were made. features.py, row_parameters.py and inputs.py do not
import jax (the runner's host half uses them); for that reason all other names are imported lazily.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jengine.sampling.features import LogprobsMode, SamplingFeatures
from jengine.sampling.inputs import (
    ROW_SETTINGS,
    RowSetting,
    SamplingInput,
    fill_sampling,
    sampling_layout,
)
from jengine.sampling.row_parameters import Admission, pack_admission, seed_words

if TYPE_CHECKING:
    from jengine.sampling.logprobs import Logprobs, score_tokens
    from jengine.sampling.row_state import RowState, admit, empty_row_state
    from jengine.sampling.sampler import SampleOutput, sample

_DEVICE_NAMES = {
    "Logprobs": "logprobs",
    "score_tokens": "logprobs",
    "SampleOutput": "sampler",
    "sample": "sampler",
    "RowState": "row_state",
    "admit": "row_state",
    "empty_row_state": "row_state",
}

__all__ = [
    "ROW_SETTINGS",
    "Admission",
    "Logprobs",
    "LogprobsMode",
    "RowSetting",
    "RowState",
    "SampleOutput",
    "SamplingFeatures",
    "SamplingInput",
    "admit",
    "empty_row_state",
    "fill_sampling",
    "pack_admission",
    "sample",
    "sampling_layout",
    "score_tokens",
    "seed_words",
]


def __getattr__(name: str) -> Any:
    if name not in _DEVICE_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_DEVICE_NAMES[name]}"), name)
