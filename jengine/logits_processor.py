"""Logits processors that run on the host: the interface that users implement. Names follow vLLM.

In: the requests of a batch as they come, move and go, and their logits as numpy arrays (vLLM gives
torch tensors). Out: changed logits. Must not know steps or devices.

For what cannot be written as a JAX function of logits. It costs every step of the engine a transfer
of its logits to the host and back, and its overlap: the host waits for the logits of each step.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from jengine.sampling_params import SamplingParams

if TYPE_CHECKING:  # settings are checked without numpy
    import numpy as np

# One request's function: (output ids, row of logits) -> row of logits, or (prompt ids, output ids,
# row of logits). The lists of ids grow as tokens are sampled.
RequestLogitsProcessor = Callable[..., "np.ndarray"]


class MoveDirectionality(Enum):
    """Whether a move overwrites the second place, or swaps both."""

    UNIDIRECTIONAL = auto()  # the request at the first place goes to the second one
    SWAP = auto()


RemovedRequest = int
AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """Changes of the batch since the last step, in order: removed, added, moved.

    An added request may reuse a removed one's place. Its list of output ids is updated in place by
    the engine: it has all tokens sampled so far whenever a processor runs.
    """

    batch_size: int  # requests in the batch now
    removed: Sequence[RemovedRequest]  # places
    added: Sequence[AddedRequest]  # place, parameters, prompt ids, output ids
    moved: Sequence[MovedRequest]


@dataclass(frozen=True)
class ProcessorConfig:
    """Engine settings for processors. Stands in for vLLM's VllmConfig: `model_config` and
    `scheduler_config` with these fields."""

    vocab_size: int
    max_num_seqs: int
    max_model_len: int

    @property
    def model_config(self) -> ProcessorConfig:
        """Itself."""
        return self

    @property
    def scheduler_config(self) -> ProcessorConfig:
        """Itself."""
        return self

    def get_vocab_size(self) -> int:
        """Entries of a row of logits."""
        return self.vocab_size


class LogitsProcessor(ABC):
    """Changes the logits of a batch. One object serves all requests of an engine."""

    @classmethod  # noqa: B027 - most have nothing to validate
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise a ValueError about parameters that this processor cannot serve."""

    @abstractmethod
    def __init__(self, vllm_config: ProcessorConfig, device: str, is_pin_memory: bool) -> None:
        """`device` is "cpu", and `is_pin_memory` is False."""

    @abstractmethod
    def apply(self, logits: np.ndarray) -> np.ndarray:
        """The logits f32 [batch, vocabulary], which may be changed in place, after the change.

        Rows of requests that this step samples nothing for hold zeros.
        """

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether greedy answers stay what they are: then only rows that draw are processed, after
        the temperature."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before each `apply`. None: the batch has the requests of the last step."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Runs a function of each request's own. Subclasses say which, by the request's parameters."""

    def __init__(self, vllm_config: ProcessorConfig, device: str, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Callable[[np.ndarray], np.ndarray]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Return the function for a request's logits; None to leave them unchanged."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply the batch's changes to `req_info`."""
        process_dict_updates(self.req_info, batch_update, self._bound)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Apply each request's function to its row."""
        for place, function in self.req_info.items():
            logits[place] = function(logits[place])
        return logits

    def _bound(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        function = self.new_req_logits_processor(params)
        if function is None:
            return None
        takes_prompt = len(inspect.signature(function).parameters) == 3
        return partial(function, *([prompt_ids] if takes_prompt else []), output_ids)


T = TypeVar("T")


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """Apply a batch's changes to a dict of per-request states by place.

    Args:
        req_entries: The dict, changed in place.
        batch_update: What `update_state` was given.
        new_state: Makes an added request's state from its parameters, prompt ids and output ids;
            None for a request that needs none.

    Returns:
        Whether the dict has changed.
    """
    if batch_update is None:
        return False
    before = dict(req_entries)
    for place, params, prompt_ids, output_ids in batch_update.added:
        _put(req_entries, place, new_state(params, prompt_ids, output_ids))
    for place in batch_update.removed:
        req_entries.pop(place, None)
    for first, second, direction in batch_update.moved:
        goes, comes = req_entries.pop(first, None), req_entries.pop(second, None)
        _put(req_entries, second, goes)
        if direction is MoveDirectionality.SWAP:
            _put(req_entries, first, comes)
    return req_entries != before


def _put(entries: dict[int, T], place: int, state: T | None) -> None:
    if state is None:
        entries.pop(place, None)
    else:
        entries[place] = state
