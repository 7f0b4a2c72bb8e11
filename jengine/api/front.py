"""The part of LLM and AsyncLLM that does not depend on how they wait. No jax.

In: prompts, conversations and calls as users write them. Out: prompts with their parameters, and
answers of the engine's client.

`LLM` and `AsyncLLM` share `api/front.py` over a `Session` and an `EngineClient`. Only plain data
passes between client and core, so a core may be in another process. Requests and aborts are
appended to a lock-free queue, from any thread or finalizer, and taken before the next step. Threads
that call one `LLM` share its steps: the first to arrive runs a step for all. `AsyncLLM` tokenizes,
runs steps and detokenizes on three threads; readers pull new output, so none queues up.
`pause_generation` only stops steps: new requests stay in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jengine.api.arguments import (
    Loras,
    Params,
    RequestArguments,
    as_conversations,
    as_list,
    final_only,
    spread,
)
from jengine.api.interrupt import held_back_interrupts
from jengine.api.metrics import exporter_of
from jengine.api.stats import EngineStats
from jengine.assembly.settings.values import human_integer
from jengine.engine.client import EngineClient
from jengine.engine.questions import AskHealth, AskStats, CallWorkers, Probe, ResizeCache
from jengine.engine.session import Session
from jengine.errors import ConfigError, EngineDead, RequestError
from jengine.executor.calls import CALLS, decoded_answers, encoded_arguments
from jengine.executor.protocol import WorkerHealth
from jengine.metrics.reader import Metric, snapshot
from jengine.prompts import TokensPrompt
from jengine.sampling_params import SamplingParams
from jengine.text.chat_template import render_chat
from jengine.text.tokenization import checked_tokenization

if TYPE_CHECKING:
    from jengine.assembly.engine import Engine


class Front:
    """An engine until its shutdown, and the calls shared by LLM and AsyncLLM."""

    def __init__(self, owner: str, engine: Engine) -> None:
        self._owner = owner
        self._engine: Engine | None = engine

    @property
    def engine(self) -> Engine:
        """Raises EngineDead after shutdown."""
        if self._engine is None:
            raise EngineDead(f"this {self._owner} was shut down. Create a new one.")
        return self._engine

    @property
    def living(self) -> Engine | None:
        """The engine, or None after shutdown."""
        return self._engine

    @property
    def session(self) -> Session:
        return self.engine.session

    @property
    def client(self) -> EngineClient:
        return self.engine.client

    def leave(self) -> Engine | None:
        """Release the engine for shutdown; None if it was released before."""
        engine, self._engine = self._engine, None
        return engine

    # --- prompts ---------------------------------------------------------------------------

    def asked(
        self,
        prompts: Any,
        sampling_params: Params,
        priority: int | Sequence[int] | None = None,
        lora_request: Loras = None,
        taps: int | Sequence[int] = 0,
        *,
        streaming: bool = False,
    ) -> list[RequestArguments]:
        """Each prompt with its parameters, priority and adapter."""
        self.engine.check_leaves()
        given = as_list(prompts)
        params = spread("sampling_params", sampling_params, len(given))
        if None in params:
            default = self.default_params()
            params = [default if one is None else one for one in params]
        if not streaming:
            params = [final_only(one) for one in params]
        levels = [level or 0 for level in spread("priority", priority, len(given))]
        adapters = spread("lora_request", lora_request, len(given))
        tapped = spread("taps", taps, len(given))
        return [
            RequestArguments(*one)
            for one in zip(given, params, levels, adapters, tapped, strict=True)
        ]

    def chat_prompts(self, messages: Any, options: Mapping[str, Any]) -> list[TokensPrompt]:
        """Render conversations by the chat template."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise RequestError("chat needs a tokenizer (skip_tokenizer_init=True was given).")
        options = dict(options)
        how = checked_tokenization(options.pop("tokenization_kwargs", None))
        if options.get("chat_template") is None:
            options["chat_template"] = self.engine.args.chat_template
        options["content_format"] = options.pop("chat_template_content_format", None)
        media = options.pop("mm_processor_kwargs", None)
        prompts, made = self.session.input_processor.prompts, []
        for conversation in as_conversations(messages):
            marked, images = prompts.without_images(conversation)
            text = render_chat(tokenizer, marked, image=prompts.image_text, **options)
            made.append(prompts.render_chat(text, how, images, media))
        return made

    def tokenized(self, prompts: Any, tokenization_kwargs: Mapping[str, Any] | None) -> Any:
        """Tokenize string prompts if `tokenization_kwargs` are given; otherwise return the prompts
        unchanged."""
        if tokenization_kwargs is None:
            return prompts
        how = checked_tokenization(tokenization_kwargs)
        render = self.session.input_processor.prompts.render
        return [render(one, how) for one in as_list(prompts)]

    def default_params(self) -> SamplingParams:
        """The parameters of requests without any: the model's generation settings."""
        return SamplingParams(**self.engine.default_params)

    def tokenizer(self) -> Any:
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise RequestError("this engine has no tokenizer (skip_tokenizer_init=True).")
        return tokenizer.hf

    # --- questions -------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counts of requests, cache use and compiled programs."""
        return EngineStats.of(self.client.ask(AskStats()), self.engine.program_counts())

    def get_metrics(self, prefix: str = "jengine") -> list[Metric]:
        """Current values of all metrics."""
        # Fresh counts, as a program expects to see its own requests.
        counts = partial(self.client.ask, AskStats())
        return snapshot(exporter_of(self.engine, prefix=prefix, counts=counts))

    @property
    def is_asleep(self) -> bool:
        """Whether any of the engine's memory is asleep."""
        return self.client.ask(AskStats()).sleep_level > 0

    def resize_cache(self, num_bytes: Any) -> None:
        engine = self.engine
        size = human_integer("num_bytes", num_bytes)
        if size is None:
            raise ConfigError("num_bytes=None: expected bytes such as 2_000_000_000 or '2G'.")
        runners = engine.runners  # raises if they are in other processes
        with held_back_interrupts():
            engine.client.ask(ResizeCache(size))
        resizing = runners[0].loaded.resizing
        assert resizing is not None, "set when the model was built"
        cache = replace(engine.cache, num_blocks=resizing.cache.num_blocks)
        self._engine = replace(engine, cache=cache)

    def health(self, probe: bool = False) -> list[WorkerHealth]:
        """The health of every process that runs steps; `probe` runs an empty step first."""
        if probe:
            self.client.ask(Probe())
        return self.client.ask(AskHealth())

    def call_workers(self, method: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Call a method in every process that runs steps. Returns the results by rank."""
        known = CALLS.get(method)
        if known is not None and known.by is not None:
            raise RequestError(f"call_workers({method!r}): use the method {known.by}(...).")
        data = encoded_arguments(method, arguments)
        return decoded_answers(method, self.client.ask(CallWorkers(method, data)))
