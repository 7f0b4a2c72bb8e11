"""A Ray Serve deployment of jengine, as Ray's ingress for LLMs asks for it (`LLMServerProtocol`).

In: an `LLMConfig`. Out: `JengineServer`. Each replica has an engine and the application of `jengine
serve` over it; every method asks a route of that, so that answers and errors are the server's. Of
the modules of Ray that import vllm or sglang, only answers to Ray's own ingress load one.
"""

from __future__ import annotations

import asyncio
import copy
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib import import_module
from typing import Any, get_type_hints
from urllib.parse import urlencode

from ray import serve
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.llm._internal.serve.core.protocol import LLMServerProtocol, RawRequestInfo
from ray.llm._internal.serve.routing_policies.kv_aware.vllm.kv_events import (
    assign_replica_kv_events_endpoint,
    get_kv_event_routing_stats,
)
from ray.llm._internal.serve.utils.lora_serve_utils import LoraModelLoader
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jengine.assembly.engine import Engine
from jengine.assembly.located import checked_elsewhere, located
from jengine.assembly.processes.engine_process import start_engine_process
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.values import check_types
from jengine.errors import ConfigError, EngineDead, RequestError, UnsupportedFeature
from jengine.integrations.ray_actor import RayMetrics, own_blocks_address, resources
from jengine.integrations.ray_serve_requests import ForwardedRequest, form_of, scope_of
from jengine.server.app import make_app
from jengine.server.errors import api_error
from jengine.server.phase import Phase
from jengine.server.serving import everywhere
from jengine.server.serving.adapter_folders import adapter_folder, allowed_folders
from jengine.server.serving.monitor import monitor
from jengine.server.serving.served_adapters import load_modules
from jengine.server.settings import ServerSettings

# Method of Ray's protocol -> route, and Ray's class of its answer.
ROUTES = {
    "chat": ("/v1/chat/completions", "ChatCompletionResponse"),
    "completions": ("/v1/completions", "CompletionResponse"),
    "embeddings": ("/v1/embeddings", "EmbeddingResponse"),
    "transcriptions": ("/v1/audio/transcriptions", "TranscriptionResponse"),
    "score": ("/v1/score", "ScoreResponse"),
    "tokenize": ("/tokenize", "TokenizeResponse"),
    "detokenize": ("/detokenize", "DetokenizeResponse"),
}
MODELS = "ray.llm._internal.serve.core.configs.openai_api_models"
# Settings of a server that has its own socket, name, admin key or state, which a replica has not.
OTHERS = frozenset({
    "host", "port", "uds", "root_path", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "admin_key",
    "served_model_name", "batch_dir", "max_stored_responses", "max_stored_response_bytes",
    "response_store_seconds", "max_batch_file_bytes", "max_batch_dir_bytes", "shutdown_timeout",
    "timeout_keep_alive", "uvicorn_log_level", "disable_uvicorn_access_log",
})  # fmt: skip
# Seconds for the requests of a replica that is no longer needed. Ray's 20 would cut long answers.
DRAIN_SECONDS = 600
METRICS_SECONDS = 10.0
# Headers of a request that are another body's.
OF_BODY = ("host", "content-length", "content-type", "transfer-encoding")


def replica_of(config: LLMConfig, admin_key: str = "") -> tuple[EngineArgs, ServerSettings]:
    """The settings in `engine_kwargs`: the engine's, and those of `jengine serve`."""
    if config.callback_config.callback_class is not CallbackBase:
        raise UnsupportedFeature("callback_config: no callback is run. Prepare nodes otherwise.")
    if wrong := [one for one in config.experimental_configs if not one.startswith("KV_")]:
        raise UnsupportedFeature(f"experimental_configs: {', '.join(wrong)} have no meaning here.")
    given, loading = dict(config.engine_kwargs), config.model_loading_config
    own = get_type_hints(ServerSettings).keys() & given.keys()
    if wrong := sorted(own & OTHERS):
        raise ConfigError(f"engine_kwargs: {', '.join(wrong)} cannot be set behind Ray Serve.")
    server: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name in own
    }
    settings = ServerSettings(
        **server,
        served_model_name=(config.model_id,),
        admin_key=(admin_key,) if admin_key else (),
        max_stored_responses=0,  # the next request of the conversation may reach another replica
    )
    check_types(settings)
    source = loading.model_source or loading.model_id
    if not isinstance(source, str):
        raise ConfigError(f"model_source={source!r:.200}: expected a folder, org/name or demo.")
    both = EngineArgs.__dataclass_fields__
    engine = {name: value for name, value in given.items() if name not in own or name in both}
    if loading.tokenizer_source:
        engine.setdefault("tokenizer", loading.tokenizer_source)
    if config.lora_config is not None:
        engine.setdefault("enable_lora", True)
        engine.setdefault("max_cpu_loras", config.lora_config.max_num_adapters_per_replica)
    return EngineArgs.checked("LLMConfig", source, **engine), settings


def _asks(method: str) -> Any:
    """A method of Ray's protocol, which returns a generator."""

    async def ask(self: JengineServer, request: Any, raw_request_info: Any = None) -> Any:
        return self._answered(method, request, raw_request_info)

    return ask


def _orders(method: str, path: str, told: str | None = None) -> Any:
    """A method of Ray's protocol that asks an admin route, and returns a field of its answer."""

    async def order(self: JengineServer, **options: Any) -> Any:
        answer = await self._order(method, path, **options)
        return None if told is None else answer[told]

    return order


class JengineServer(LLMServerProtocol):
    """A deployment whose replicas have an engine each. Give it as `LLMConfig(server_cls=...)`."""

    async def __init__(self, llm_config: LLMConfig) -> None:
        self._config = llm_config
        self._admin_key = secrets.token_hex(16)
        self._tasks: set[asyncio.Future[Any]] = set()
        assign_replica_kv_events_endpoint(llm_config)
        if blocks := llm_config.engine_kwargs.get("kv_transfer_config"):
            rank = serve.get_replica_context().rank.local_rank
            replicas = llm_config.engine_kwargs.get("data_parallel_size") or 1
            blocks = own_blocks_address(blocks, rank, replicas)
            llm_config.update_engine_kwargs(kv_transfer_config=blocks)
        args, settings = replica_of(llm_config, self._admin_key)
        self.app = make_app(None, settings)
        self.app.add_middleware(AdapterFirst, load=self._load_adapter)
        self.service = self.app.state.service

        def started() -> Engine:
            engine = start_engine_process(located(args, checked_elsewhere(args)))
            load_modules(engine, settings.lora_modules)
            return engine

        engine = await asyncio.to_thread(started)
        self.service.adopt(engine)
        self._keep(monitor(self.service))
        if llm_config.log_engine_metrics:
            self._keep(published(RayMetrics(engine)))
        lora = llm_config.lora_config
        if lora is not None:
            loader = LoraModelLoader(None, lora.download_timeout_s, lora.max_download_tries)
            self._remote = lora.dynamic_lora_loading_path and loader
            most = lora.max_num_adapters_per_replica

            @serve.multiplexed(max_num_models_per_replica=most)
            async def adapter(name: str) -> str:
                return await self._adapter_in(name)

            self._adapter = adapter

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __del__(self) -> None:
        """Ray calls it when the replica's requests have been answered."""
        if hasattr(self, "service"):
            self.service.shutdown()

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application itself, for `serve.ingress()(JengineServer)`."""
        return self.app

    async def http(self, asked: ForwardedRequest) -> AsyncGenerator[Any, None]:
        """Answer a request: status and headers, then parts of the body."""
        async for part in self._exchanged(asked):
            yield part

    async def _exchanged(self, asked: ForwardedRequest) -> AsyncGenerator[Any, None]:
        """Ask the application, which sees a disconnect when the reader of this generator ends."""
        unread: list[Message] = [{"type": "http.request", "body": asked.body, "more_body": False}]
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def work() -> None:
            try:
                await self.app(scope_of(asked), receive, sent.put)
            finally:
                sent.put_nowait(None)

        self._keep(work())
        waiting: list[Message | None] = [{}]
        try:
            while waiting[-1] is not None:
                waiting = [await sent.get()]
                while not sent.empty():  # a part of the body costs Ray more than its bytes
                    waiting.append(sent.get_nowait())
                for message in waiting:
                    if message is not None and message["type"] == "http.response.start":
                        yield message["status"], list(message["headers"])
                if body := b"".join(message.get("body", b"") for message in waiting if message):
                    yield body
        finally:
            gone.set()

    async def _answered(
        self, method: str, request: Any, info: RawRequestInfo | None
    ) -> AsyncGenerator[Any, None]:
        """Answer Ray's own ingress: events as text, else an object of the class that it expects."""
        path, name = ROUTES[method]
        if method == "transcriptions":
            kind, body = await form_of(request)
        else:
            kind, body = "application/json", request.model_dump_json(exclude_unset=True).encode()
        given = {} if info is None else info.headers
        kept = {one: text for one, text in given.items() if one.lower() not in OF_BODY}
        headers = [(b"content-type", kind.encode())]
        headers += [(one.lower().encode(), (text or "").encode()) for one, text in kept.items()]
        parts = self._exchanged(ForwardedRequest("POST", path, headers, body))
        status, head = await anext(parts)
        kind = dict(head).get(b"content-type", b"").decode()
        if status < 400 and kind.startswith("text/"):
            async for part in parts:
                yield part.decode()
            return
        content, models = b"".join([part async for part in parts]), import_module(MODELS)
        if status < 400:
            yield getattr(models, name)(**json.loads(content))
        else:
            error = json.loads(content)["error"]
            yield models.ErrorResponse(error=models.ErrorInfo(**{**error, "code": status}))

    chat = _asks("chat")
    completions = _asks("completions")
    embeddings = _asks("embeddings")
    transcriptions = _asks("transcriptions")
    score = _asks("score")
    tokenize = _asks("tokenize")
    detokenize = _asks("detokenize")

    async def _adapter_in(self, name: str) -> str:
        """Load an adapter. The engine frees the memory of those that are not used."""
        adapters = self.service.live.adapters
        if adapters.named(name) is None:
            if self._remote:
                found = await self._remote.load_model_from_config(name, self._config)
                folder = found.local_path
            else:
                settings = self.service.settings
                allowed = allowed_folders(settings.lora_dirs, settings.lora_modules)
                folder = adapter_folder(allowed, name.partition(":")[2])
            await everywhere.load_adapter(self.service, name, folder, in_place=False)
        return name

    async def _load_adapter(self) -> None:
        """Load the adapter that the request names, if it is one of Ray's multiplexed models."""
        name = serve.get_multiplexed_model_id()
        if name and self._config.lora_config is not None:
            await self._adapter(name)

    async def _order(self, method: str, path: str, **options: Any) -> Any:
        """Ask an admin route."""
        given = {name: value for name, value in options.items() if value is not None}
        key = f"Bearer {self._admin_key}".encode()
        query = urlencode(given, doseq=True).encode()
        asked = ForwardedRequest(method, path, [(b"authorization", key)], b"", query)
        (status, _), *parts = [one async for one in self._exchanged(asked)]
        said = json.loads(b"".join(parts))
        if status >= 400:
            raise RequestError(said["error"]["message"])
        return said

    # Options are those of the routes' queries: level, mode and tags, mode and clear_cache, ...
    sleep = _orders("POST", "/sleep")
    wakeup = _orders("POST", "/wake_up")
    is_sleeping = _orders("GET", "/is_sleeping", "is_sleeping")
    pause = _orders("POST", "/pause")
    resume = _orders("POST", "/resume")
    is_paused = _orders("GET", "/is_paused", "is_paused")
    reset_prefix_cache = _orders("POST", "/reset_prefix_cache")
    start_profile = _orders("POST", "/start_profile")
    stop_profile = _orders("POST", "/stop_profile")

    async def check_health(self) -> None:
        """Raise if the engine has died, so that Ray starts another replica."""
        self.service.check_alive()
        if self.service.phase is Phase.DEAD:
            raise EngineDead("The engine has stopped. The replica's log has the cause.")

    async def record_routing_stats(self) -> dict[str, Any]:
        """Where Ray's KV-aware router hears which blocks this replica has cached."""
        engine = self.service.live.engine
        sizes = engine.cache.block_size, engine.schedule.max_num_batched_tokens
        return dict(get_kv_event_routing_stats(self._config, *sizes))

    async def llm_config(self) -> LLMConfig:
        return self._config

    @classmethod
    def get_deployment_options(cls, llm_config: LLMConfig) -> dict[str, Any]:
        """Options of `serve.deployment`: `deployment_config`, and what an engine takes of the
        cluster. Settings that no replica could start with are refused here."""
        replica_of(llm_config)
        options: dict[str, Any] = {
            "graceful_shutdown_timeout_s": DRAIN_SECONDS,
            **copy.deepcopy(llm_config.deployment_config),
        }
        actor = {**resources(llm_config), **(options.get("ray_actor_options") or {})}
        if llm_config.runtime_env:
            actor["runtime_env"] = {**(actor.get("runtime_env") or {}), **llm_config.runtime_env}
        return {**options, "ray_actor_options": actor}


class AdapterFirst:
    """ASGI middleware that loads a request's adapter before the route runs."""

    def __init__(self, app: ASGIApp, load: Callable[[], Awaitable[None]]) -> None:
        self.app, self.load = app, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.load()
        except Exception as error:  # noqa: BLE001 - the table of errors knows them all
            await api_error(error).response(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def published(metrics: RayMetrics) -> None:
    """Hand an engine's metrics to Ray from time to time."""
    while True:
        metrics.publish()
        await asyncio.sleep(METRICS_SECONDS)
