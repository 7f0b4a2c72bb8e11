"""The ASGI application: the table of routes, and the middleware around it.

In: an engine and settings. Out: an ASGI app. A request passes the limits of its head, then
authentication, then its route; exceptions become responses in one place.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jengine.assembly.engine import Engine
from jengine.errors import ConfigError
from jengine.import_paths import imported
from jengine.server.audio import endpoints as audio
from jengine.server.batches import endpoints as batches
from jengine.server.batches.batches import LEAST_URGENT, Batches
from jengine.server.batches.route_calls import Route as AskedRoute
from jengine.server.batches.route_calls import asker
from jengine.server.batches.store import Store
from jengine.server.batches.types import CreateBatch
from jengine.server.chat import endpoint as chat
from jengine.server.chat.fields import ChatRequest
from jengine.server.completions import endpoint as completions
from jengine.server.completions.fields import CompletionRequest
from jengine.server.errors import api_error
from jengine.server.examples import EXAMPLES, REQUIRED
from jengine.server.http.auth import Access, Authentication, Keys
from jengine.server.http.body import Ignored
from jengine.server.http.json_response import json_response
from jengine.server.http.limits import RequestLimits
from jengine.server.http.openapi import document
from jengine.server.http.root_path import RootPath
from jengine.server.http.route_metrics import HttpCounters, HttpMetrics
from jengine.server.invocations import invocations
from jengine.server.messages import endpoint as messages
from jengine.server.messages.fields import CountRequest, MessagesRequest
from jengine.server.peers.channel import Peers
from jengine.server.pooling import cohere, scoring
from jengine.server.pooling import endpoints as pooling
from jengine.server.pooling.cohere import EmbedRequest
from jengine.server.pooling.fields import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from jengine.server.responses import endpoint as responses
from jengine.server.responses.fields import ResponsesRequest
from jengine.server.routes import (
    adapters,
    admin,
    health,
    metrics,
    models,
    page,
    tokenizing,
)
from jengine.server.serving.service import Service
from jengine.server.settings import ServerSettings

Handler = Callable[[Service, Request], Awaitable[Response]]


class Endpoint(NamedTuple):
    """A row of the route table: path, method, required access and handler."""

    method: str
    path: str
    access: Access
    handler: Handler
    body: type[msgspec.Struct] | None = None  # request body
    kind: str | None = None  # kind of model that it needs: generative or pooling


async def schema(service: Service, http: Request) -> Response:
    """The OpenAPI document: all routes and their request bodies."""
    return json_response(document(ENDPOINTS, EXAMPLES, REQUIRED))


GENERATES, POOLS = "generate", "pooling"  # kinds of models
POOLING = (
    ("/v1/embeddings", Access.KEY, pooling.embeddings, EmbeddingRequest),
    ("/v2/embed", Access.KEY, cohere.embed, EmbedRequest),
    ("/pooling", Access.KEY, pooling.pooling, PoolingRequest),
    ("/classify", Access.KEY, pooling.classify, ClassifyRequest),
    ("/score", Access.KEY, scoring.score, ScoreRequest),
    ("/v1/score", Access.KEY, scoring.score, ScoreRequest),
    ("/rerank", Access.KEY, scoring.rerank, RerankRequest),
    ("/v1/rerank", Access.KEY, scoring.rerank, RerankRequest),
    ("/v2/rerank", Access.KEY, scoring.rerank, RerankRequest),
)
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/", Access.PUBLIC, page.page),
    Endpoint("GET", "/health", Access.PUBLIC, health.health),
    Endpoint("GET", "/health/ready", Access.PUBLIC, health.ready),
    Endpoint("GET", "/health/live", Access.PUBLIC, health.live),
    Endpoint("GET", "/ping", Access.PUBLIC, health.health),
    Endpoint("POST", "/ping", Access.PUBLIC, health.health),
    Endpoint("GET", "/version", Access.PUBLIC, health.version),
    Endpoint("GET", "/load", Access.PUBLIC, health.load),
    Endpoint("GET", "/metrics", Access.PUBLIC, metrics.metrics),
    Endpoint("GET", "/v1/models", Access.KEY, models.models),
    Endpoint("GET", "/v1/models/{model_id:path}", Access.KEY, models.model),
    Endpoint(
        "POST",
        "/v1/completions",
        Access.KEY,
        completions.completions,
        CompletionRequest,
        "generate",
    ),
    Endpoint(
        "POST", "/v1/chat/completions", Access.KEY, chat.chat_completions, ChatRequest, "generate"
    ),
    Endpoint("POST", "/invocations", Access.KEY, invocations),
    Endpoint("POST", "/v1/messages", Access.KEY, messages.messages, MessagesRequest, GENERATES),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        Access.KEY,
        messages.count_tokens,
        CountRequest,
        "generate",
    ),
    Endpoint(
        "POST", "/v1/responses", Access.KEY, responses.create_response, ResponsesRequest, "generate"
    ),
    Endpoint("GET", "/v1/responses/{response_id}", Access.KEY, responses.get_response),
    Endpoint("DELETE", "/v1/responses/{response_id}", Access.KEY, responses.delete_response),
    Endpoint("POST", "/v1/responses/{response_id}/cancel", Access.KEY, responses.cancel_response),
    Endpoint("POST", "/tokenize", Access.KEY, tokenizing.tokenize, tokenizing.TokenizeRequest),
    Endpoint(
        "POST", "/detokenize", Access.KEY, tokenizing.detokenize, tokenizing.DetokenizeRequest
    ),
    Endpoint("GET", "/tokenizer_info", Access.KEY, tokenizing.tokenizer_info),
    Endpoint("POST", "/v1/files", Access.KEY, batches.create_file),
    Endpoint("GET", "/v1/files", Access.KEY, batches.list_files),
    Endpoint("GET", "/v1/files/{file_id}", Access.KEY, batches.get_file),
    Endpoint("DELETE", "/v1/files/{file_id}", Access.KEY, batches.delete_file),
    Endpoint("GET", "/v1/files/{file_id}/content", Access.KEY, batches.file_content),
    Endpoint("POST", "/v1/batches", Access.KEY, batches.create_batch, CreateBatch),
    Endpoint("GET", "/v1/batches", Access.KEY, batches.list_batches),
    Endpoint("GET", "/v1/batches/{batch_id}", Access.KEY, batches.get_batch),
    Endpoint("POST", "/v1/batches/{batch_id}/cancel", Access.KEY, batches.cancel_batch),
    Endpoint("POST", "/v1/audio/transcriptions", Access.KEY, audio.transcriptions, kind=GENERATES),
    Endpoint("POST", "/v1/audio/translations", Access.KEY, audio.translations, kind=GENERATES),
    *(Endpoint("POST", *one, kind=POOLS) for one in POOLING),
    Endpoint(
        "POST",
        "/v1/load_lora_adapter",
        Access.ADMIN,
        adapters.load_lora_adapter,
        adapters.LoadAdapterRequest,
    ),
    Endpoint(
        "POST",
        "/v1/unload_lora_adapter",
        Access.ADMIN,
        adapters.unload_lora_adapter,
        adapters.UnloadAdapterRequest,
    ),
    Endpoint("POST", "/reset_prefix_cache", Access.ADMIN, admin.reset_prefix_cache),
    Endpoint("POST", "/pause", Access.ADMIN, admin.pause),
    Endpoint("POST", "/resume", Access.ADMIN, admin.resume),
    Endpoint("GET", "/is_paused", Access.ADMIN, admin.is_paused),
    Endpoint("POST", "/sleep", Access.ADMIN, admin.sleep),
    Endpoint("POST", "/wake_up", Access.ADMIN, admin.wake_up),
    Endpoint("GET", "/is_sleeping", Access.ADMIN, admin.is_sleeping),
    Endpoint("POST", "/release_kv_cache_memory", Access.ADMIN, admin.release_kv_cache_memory),
    Endpoint("POST", "/reload_weights", Access.ADMIN, admin.reload_weights),
    Endpoint("POST", "/update_weights", Access.ADMIN, admin.update_weights),
    Endpoint("POST", "/abort_requests", Access.ADMIN, admin.abort_requests, admin.AbortRequest),
    Endpoint("POST", "/scale_elastic_ep", Access.ADMIN, admin.scale_elastic_ep, admin.ScaleRequest),
    Endpoint("POST", "/start_profile", Access.ADMIN, admin.start_profile),
    Endpoint("POST", "/stop_profile", Access.ADMIN, admin.stop_profile),
    Endpoint("GET", "/memory_profile", Access.ADMIN, admin.memory_profile),
    Endpoint("GET", "/openapi.json", Access.PUBLIC, schema),
    Endpoint("GET", "/docs", Access.PUBLIC, page.docs),
)


def make_app(
    engine: Engine | None, settings: ServerSettings, peers: Peers | None = None
) -> Starlette:
    """Return the Starlette app over an engine.

    Without an engine every request gets 503 ("starting") until `service.adopt`. `peers` are the
    server's other API processes.
    """
    service = Service(settings, peers)
    if engine is not None:
        service.adopt(engine)
    app = Starlette(
        routes=[route(service, endpoint) for endpoint in ENDPOINTS],
        middleware=middleware(service),
        exception_handlers={HTTPException: refused},
    )
    app.state.service = service
    app.state.batches = None
    if settings.batch_dir is not None:
        ask = asker(asked_routes(service), LEAST_URGENT)
        store = Store(Path(settings.batch_dir))
        app.state.batches = Batches(store, service, ask, asked_routes(service))
    return app


def asked_routes(service: Service) -> dict[str, AskedRoute]:
    """The routes that run the model on a JSON body, for requests without a connection."""
    return {
        one.path: partial(answered, service, one)
        for one in ENDPOINTS
        if one.method == "POST" and one.body and one.kind is not None
    }


def middleware(service: Service) -> list[Middleware]:
    """ASGI middleware of all routes, outermost first."""
    settings = service.settings
    layers = [
        Middleware(RootPath, root_path=settings.root_path),
        Middleware(HttpMetrics, counters=HttpCounters(service.registry)),
        Middleware(RequestLimits, settings=settings),
        Middleware(
            Authentication,
            access=access_of,
            api_keys=Keys(settings.api_key),
            admin_keys=Keys(settings.admin_key),
        ),
    ]
    if settings.allowed_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            allow_credentials=settings.allow_credentials,
        )
        layers.insert(2, cors)  # before authentication: a browser's preflight carries no key
    return [*map(users_middleware, reversed(settings.middleware)), *layers]


def users_middleware(path: str) -> Middleware:
    """Import a user's middleware, named as `package.module:name` or `package.module.name`, as in
    vLLM."""
    named = path if ":" in path else ":".join(path.rsplit(".", 1))
    found = imported("middleware", named)
    if isinstance(found, type):
        return Middleware(found)
    if inspect.iscoroutinefunction(found):
        return Middleware(BaseHTTPMiddleware, dispatch=found)
    raise ConfigError(
        f"middleware={path!r} is a {type(found).__name__}: expected a class of ASGI middleware, or "
        "an async function of (request, call_next)."
    )


def access_of(path: str) -> Access:
    """Return the access level of a path; paths without a route need the API key."""
    return _ACCESS.get(path, Access.KEY)


_ACCESS = {endpoint.path: endpoint.access for endpoint in ENDPOINTS}


async def answered(service: Service, endpoint: Endpoint, http: Request) -> Response:
    """Run an endpoint's handler; exceptions become error responses."""
    http.state.handler = endpoint.path
    http.state.text_limits = service.text_limits
    try:
        service.check_kind(endpoint.kind, endpoint.path)
        response = await endpoint.handler(service, http)
    except Exception as error:  # noqa: BLE001 - the table of errors knows them all
        response = api_error(error, getattr(http.state, "fields", frozenset())).response
    ignored: Ignored = getattr(http.state, "ignored_fields", Ignored())
    if ignored.names:
        service.ignored_fields.note(ignored.names)
        response.headers["x-jengine-ignored-fields"] = ignored.header
    return response


def route(service: Service, endpoint: Endpoint) -> Route:
    async def call(http: Request) -> Response:
        return await answered(service, endpoint, http)

    return Route(endpoint.path, call, methods=[endpoint.method])


async def refused(http: Request, error: Exception) -> Response:
    """The response to an exception raised before a route was found (404, 405)."""
    return api_error(error).response
