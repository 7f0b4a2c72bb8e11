"""Interface of logits processors that run on the host, with vLLM's names.

In: changes of the batch, and its logits as numpy arrays (vLLM gives torch tensors). Out: changed
logits. Must not know steps or devices.

For processors that cannot be written as JAX functions of logits. Every step of the engine then
transfers its logits to the host and back, and steps no longer overlap: the host waits for each
step's logits.
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

if TYPE_CHECKING:  # settings are validated without numpy
    import numpy as np

# A request's function: (output ids, logits row) -> logits row, or (prompt ids, output ids, logits
# row) -> logits row. The lists of ids grow as tokens are sampled.
RequestLogitsProcessor = Callable[..., "np.ndarray"]


class MoveDirectionality(Enum):
    """Whether a move overwrites the second place, or swaps both."""

    UNIDIRECTIONAL = auto()  # the first place's request moves to the second
    SWAP = auto()


RemovedRequest = int
AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """Changes of the batch since the last step, applied in the order removed, added, moved.

    An added request may reuse a removed one's place. The engine appends to its list of output ids
    in place, so it always has all tokens sampled so far.
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
        return self

    @property
    def scheduler_config(self) -> ProcessorConfig:
        return self

    def get_vocab_size(self) -> int:
        """Vocabulary size of the logits."""
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
        """Return the changed logits f32 [batch, vocabulary]; may change them in place.

        Rows of requests without a sampled token in this step are zeros.
        """

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the argmax never changes. If so, only rows that are not greedy are processed,
        after the temperature."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before each `apply`. None: the batch has the requests of the last step."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Runs a function per request, which subclasses choose by the request's parameters."""

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
