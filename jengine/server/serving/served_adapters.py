"""LoRA adapters served under model names of their own.

In: names and folders, from flags or admin routes. Out: the adapter of a request's `model`. An
adapter that the engine has evicted is reloaded by the next request for it. Must not know HTTP.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence

from jengine.adapters import LoRARequest, adapter_modules
from jengine.assembly.engine import Engine
from jengine.errors import RequestError
from jengine.server.errors import ApiError
from jengine.server.serving.model_names import ModelNames

logger = logging.getLogger(__name__)


def load_modules(engine: Engine, modules: Sequence[str]) -> None:
    """Load the adapters of --lora-modules. Raises if one cannot be loaded."""
    for request in adapter_modules(modules):
        engine.session.adapters.add(request)


class ServedAdapters:
    """LoRA adapters by served name. `load` and `unload` block until the engine is done."""

    def __init__(self, engine: Engine, names: ModelNames, modules: Sequence[str]) -> None:
        self._adapters = engine.session.adapters
        self._names = names
        load_modules(engine, modules)
        given = adapter_modules(modules)
        for one in given:
            self._refuse_taken(one.lora_name)
        self._by_name = {one.lora_name: one for one in given}
        self._numbers = itertools.count(len(given) + 1)
        self._lock = threading.Lock()

    @property
    def all(self) -> list[LoRARequest]:
        """Adapters in the order of loading."""
        return list(self._by_name.values())

    def named(self, name: str | None) -> LoRARequest | None:
        return self._by_name.get(name or "")

    def checked(self, model: str | None) -> tuple[str, LoRARequest | None]:
        """Resolve `model` to the name for the response and its adapter. Raises ApiError 404."""
        adapter = self.named(model)
        if adapter is not None:
            return adapter.lora_name, adapter
        return self._names.checked(model, also=list(self._by_name)), None

    def load(self, name: str, folder: str, *, in_place: bool = False) -> str:
        """Load an adapter from a folder and serve it. `in_place`: it may replace one of
        that name."""
        with self._lock:
            self._refuse_taken(name)
            known = self._by_name.get(name)
            if known is not None and not in_place:
                raise ApiError(
                    400,
                    f"The lora adapter '{name}' has already been loaded. If you want to load the "
                    "adapter in place, set 'load_inplace' to True.",
                )
            number = next(self._numbers) if known is None else known.lora_int_id
            request = LoRARequest(name, number, folder)
            if known is not None:
                self._adapters.replace(request)
            else:
                self._adapters.add(request)
            self._by_name[name] = request
            logger.info("Loaded new LoRA adapter: name '%s', path '%s'", name, folder)
            return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, name: str) -> str:
        """Stop serving an adapter; running requests keep it until they finish."""
        with self._lock:
            known = self._by_name.pop(name, None)
            if known is None:
                raise ApiError(404, f"The lora adapter '{name}' cannot be found.")
            self._adapters.remove(known.lora_int_id)
            logger.info("Removed LoRA adapter: name '%s'", name)
            return f"Success: LoRA adapter '{name}' removed successfully."

    def _refuse_taken(self, name: str) -> None:
        if name in self._names.names:
            raise RequestError(f"The lora adapter '{name}' conflicts with a served base model.")
