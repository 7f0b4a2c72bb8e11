"""LoRA adapters known to a front, loaded into the core at first use.

In: LoRARequests. Out: the content digest by which the core knows an adapter. The core keeps an
adapter until told to drop it; this cache drops unused ones beyond max_cpu_loras, least recently
used first, and never those of open requests. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from jengine.adapters import AdapterLimits, AdapterReport, LoRARequest
from jengine.engine.questions import CallWorkers
from jengine.errors import RequestError, UnsupportedFeature
from jengine.executor.calls import AddAdapter, DropAdapter, decoded_answers
from jengine.wire.message import encode

Ask = Callable[[CallWorkers], list[bytes]]


class LoadedAdapter(msgspec.Struct):
    request: LoRARequest
    digest: str
    live: bool = False  # given as arrays, so it cannot be reloaded
    pinned: bool = False
    held: int = 0  # callers that are submitting a request with it


class Adapters:
    """Loads and evicts adapters. `in_use` returns digests of open requests, `folder_of` an
    adapter's local folder."""

    def __init__(
        self,
        ask: Ask,
        limits: AdapterLimits | None,
        in_use: Callable[[], set[str]],
        folder_of: Callable[[str], str] = str,
    ) -> None:
        self._ask = ask
        self._limits = limits
        self._in_use = in_use
        self._folder_of = folder_of
        self._known: dict[int, LoadedAdapter] = {}  # by lora_int_id, least recently used first
        self._retired: list[LoadedAdapter] = []  # replaced or removed; requests may still use them
        self._lock = threading.Lock()

    @contextmanager
    def held(self, request: LoRARequest | None) -> Iterator[str]:
        """Yield an adapter's digest and keep it loaded inside the block; "" for no adapter."""
        if request is None:
            yield ""
            return
        with self._lock:
            loaded = self._loaded(request)
            loaded.held += 1
        try:
            yield loaded.digest
        finally:
            with self._lock:
                loaded.held -= 1

    def add(
        self,
        request: LoRARequest,
        matrices: Mapping[str, Any] | None = None,
        alpha: float | None = None,
        *,
        use_rslora: bool = False,
    ) -> bool:
        """Load an adapter from its folder or from in-memory matrices. Returns False if its
        lora_int_id is loaded already and was not replaced."""
        with self._lock:
            known = self._known.get(checked(request).lora_int_id)
            if matrices is None:
                self._loaded(request)
            else:
                self._replace(request, self._ask_for(request, matrices, alpha, use_rslora), True)
            return known is None or self._known[request.lora_int_id] is not known

    def replace(self, request: LoRARequest) -> None:
        """Load an adapter from its folder, replacing the one with its lora_int_id."""
        with self._lock:
            self._replace(checked(request), self._ask_for(request), False)

    def remove(self, number: int) -> bool:
        """Remove an adapter; running requests keep it until they end. Returns False if there is
        none."""
        with self._lock:
            loaded = self._known.pop(number, None)
            if loaded is None:
                return False
            self._retired.append(loaded)
            self._drop_unused()
            return True

    def pin(self, number: int) -> bool:
        """Exempt an adapter from eviction. Raises RequestError if it is unknown or more than
        max_cpu_loras would be pinned."""
        with self._lock:
            if number not in self._known:
                raise RequestError(
                    f"pin_lora({number}): no such adapter; loaded are {sorted(self._known)}."
                )
            limits = self._required()
            pinned = {*(n for n, one in self._known.items() if one.pinned), number}
            if len(pinned) > limits.max_cpu_loras:
                raise RequestError(
                    f"pin_lora({number}): {len(pinned)} adapters would be pinned, "
                    f"max_cpu_loras={limits.max_cpu_loras}."
                )
            self._known[number].pinned = True
            return True

    def numbers(self) -> set[int]:
        with self._lock:
            return set(self._known)

    def named(self, name: str) -> LoRARequest | None:
        with self._lock:
            return next(
                (one.request for one in self._known.values() if one.request.lora_name == name), None
            )

    def _required(self) -> AdapterLimits:
        if self._limits is None:
            raise UnsupportedFeature("LoRA adapters: create the engine with enable_lora=True.")
        return self._limits

    def _loaded(self, request: LoRARequest) -> LoadedAdapter:
        """Return the adapter as most recently used, loading it if needed."""
        self._required()
        number = checked(request).lora_int_id
        known = self._known.get(number)
        if known is not None and not (request.load_inplace and not known.live):
            if known.request != request and request.lora_path:
                raise RequestError(
                    f"lora_int_id={number} is the adapter {known.request.lora_name!r} from "
                    f"{known.request.lora_path or 'a trainer'!r}, not {request.lora_name!r} from "
                    f"{request.lora_path!r}. Use another number, remove_lora({number}) first, or "
                    "load_inplace=True."
                )
            self._known[number] = self._known.pop(number)
            return known
        if not request.lora_path:
            raise RequestError(
                f"LoRARequest({request.lora_name!r}, {number}) has no lora_path, and no adapter of "
                "this number is loaded. Give the folder, or add_lora(request, params) first."
            )
        return self._replace(request, self._ask_for(request), False)

    def _replace(self, request: LoRARequest, report: AdapterReport, live: bool) -> LoadedAdapter:
        old = self._known.pop(request.lora_int_id, None)
        if old is not None:
            self._retired.append(old)
        made = LoadedAdapter(request, report.digest, live, old is not None and old.pinned)
        self._known[request.lora_int_id] = made
        self._drop_unused(keep=made)
        return made

    def _ask_for(
        self,
        request: LoRARequest,
        matrices: Mapping[str, Any] | None = None,
        alpha: float | None = None,
        use_rslora: bool = False,
    ) -> AdapterReport:
        self._required()
        given = AddAdapter(
            self._folder_of(request.lora_path) if matrices is None else "",
            {name: np.asarray(one, np.float32) for name, one in flat(matrices or {}).items()},
            alpha,
            use_rslora,
        )
        reports = self._call("add_adapter", given, request)
        if len({report.digest for report in reports}) != 1:
            raise RequestError(
                f"LoRA adapter {request.lora_name!r}: processes read different files from "
                f"{request.lora_path!r}."
            )
        return reports[0]

    def _call(self, method: str, given: msgspec.Struct, request: LoRARequest) -> list[Any]:
        answers = self._ask(CallWorkers(method, encode(given)))
        return decoded_answers(method, answers, f"LoRA adapter {request.lora_name!r}")

    def _drop_unused(self, keep: LoadedAdapter | None = None) -> None:
        """Drop replaced, removed and excess adapters that no request uses."""
        most = self._required().max_cpu_loras
        beyond = max(0, len(self._known) - most)
        if not beyond and not self._retired:
            return
        used = self._in_use()
        for loaded in [one for one in self._retired if not one.held and one.digest not in used]:
            self._retired.remove(loaded)
            self._drop(loaded)
        for number, loaded in list(self._known.items()):
            fixed = loaded.pinned or loaded.live or loaded is keep or loaded.held
            if beyond and not fixed and loaded.digest not in used:
                beyond -= 1
                del self._known[number]
                self._drop(loaded)

    def _drop(self, loaded: LoadedAdapter) -> None:
        self._call("drop_adapter", DropAdapter(loaded.digest), loaded.request)


def checked(request: Any) -> LoRARequest:
    """Raise RequestError unless it is a LoRARequest."""
    if not isinstance(request, LoRARequest):
        raise RequestError(
            f"lora_request is a {type(request).__name__}; expected a jengine.LoRARequest."
        )
    return request


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten a tree of matrices to dotted paths."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{before}{key}"
        found.update(flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value})
    return found
