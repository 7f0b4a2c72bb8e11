"""jengine on Ray Serve: the builders of `ray.serve.llm`, without vllm.

In: `LLMConfig`s, as objects, dicts or YAML files. Out: an application for `serve.run`: an ingress
that reads which model a request is for, and a deployment of engines for each model, or two, for
prefill and decode apart. All modules of `ray.serve.llm` import vllm or sglang, for the types of
requests; where one of these is installed its own `build_openai_app` takes the same configs with
`server_cls=JengineServer`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from ray import serve
from ray.exceptions import RayError
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.llm._internal.serve.routing_policies.kv_aware.kv_aware_router import is_kv_aware
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)
from ray.serve.deployment import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jengine.errors import ConfigError, UnsupportedFeature
from jengine.integrations.ray_serve_decode import DecodeServer, check_apart
from jengine.integrations.ray_serve_engine import JengineServer, replica_of
from jengine.integrations.ray_serve_requests import ForwardedRequest
from jengine.server.app import ENDPOINTS, refused
from jengine.server.errors import ApiError, api_error
from jengine.server.http.auth import Access, Authentication, Keys
from jengine.server.http.body import whole_body
from jengine.server.http.form import field_of, form_parts
from jengine.server.http.json_response import json_response
from jengine.server.http.limits import RequestLimits
from jengine.server.http.root_path import route_path
from jengine.server.settings import ServerSettings

__all__ = [
    "DecodeServer",
    "JengineServer",
    "LLMConfig",
    "PrefixCacheAffinityRouter",
    "build_openai_app",
    "build_pd_openai_app",
]

logger = logging.getLogger(__name__)
# Routes that any replica can answer. /v1/responses is among them without stored responses.
PASSED = [
    one.path
    for one in ENDPOINTS
    if one.method == "POST" and (one.kind or one.path in ("/tokenize", "/detokenize"))
]
# Requests at one replica of the ingress, or of an engine, which queues and refuses by itself.
ONGOING = {"max_ongoing_requests": 1_000_000}


class Named(msgspec.Struct):
    """The field of a request that the ingress reads."""

    model: str | None = None


def build_openai_app(builder_config: Mapping[str, Any]) -> Application:
    """An application that serves models with OpenAI's API.

    Args:
        builder_config: `llm_configs`, and `ingress_deployment_config`, which has options of
            `serve.deployment` for the ingress.
    """
    given = dict(builder_config)
    configs = [config_of(one) for one in given.pop("llm_configs", [])]
    options = given.pop("ingress_deployment_config", {})
    if given:
        raise ConfigError(
            f"{', '.join(map(repr, given))}: expected llm_configs and ingress_deployment_config."
        )
    servers = {config.model_id: deployment_of(config) for config in configs}
    if not servers or len(servers) < len(configs):
        raise ConfigError("llm_configs: expected one or more, of different model_id.")
    return ingress_of(servers, configs, options)


def build_pd_openai_app(pd_serving_args: Mapping[str, Any]) -> Application:
    """An application whose prompts are computed by other engines than their answers.

    Args:
        pd_serving_args: `prefill_config` and `decode_config`, `LLMConfig`s of one model whose
            `engine_kwargs` have `kv_transfer_config`, and `ingress_deployment_config`.
    """
    given = dict(pd_serving_args)
    names = ("prefill_config", "decode_config")
    if missing := [name for name in names if name not in given]:
        raise ConfigError(f"{' and '.join(missing)}: missing. Expected an LLMConfig of each.")
    prefill, decode = (config_of(given.pop(name)) for name in names)
    options = given.pop("ingress_deployment_config", {})
    if given:
        raise ConfigError(
            f"{', '.join(map(repr, given))}: expected {', '.join(names)} and "
            "ingress_deployment_config."
        )
    check_apart(prefill, decode)
    prompts = deployment_of(prefill, prefix="Prefill")
    server = deployment_of(decode, prefix="Decode", usual=DecodeServer, prefill_server=prompts)
    return ingress_of({decode.model_id: server}, [decode], options)


def ingress_of(
    servers: Mapping[str, Application], configs: Sequence[LLMConfig], options: Mapping[str, Any]
) -> Application:
    """The ingress before servers of these models."""
    adapted = [config.model_id for config in configs if config.lora_config is not None]
    keys = [replica_of(config)[1].api_key for config in configs]
    shared = sum(keys, ()) if all(keys) else ()
    ingress = serve.deployment(serve.ingress()(Ingress), name="JengineIngress")
    return ingress.options(**{**ONGOING, **options}).bind(servers, adapted, shared)


def config_of(given: LLMConfig | Mapping[str, Any] | str) -> LLMConfig:
    if isinstance(given, LLMConfig):
        return given
    if isinstance(given, str):
        given = yaml.safe_load(Path(given).read_text())
    return LLMConfig.model_validate(given)


def deployment_of(
    config: LLMConfig,
    *,
    prefix: str = "",
    usual: type[JengineServer] = JengineServer,
    **bound: Application,
) -> Application:
    """The engines of a model. `prefix`: of the deployment's name; `bound`: other deployments that
    its replicas ask."""
    kind = config.server_cls or usual
    if not issubclass(kind, usual):
        raise ConfigError(f"server_cls={kind!r}: expected {usual.__name__} or a class below it.")
    if is_kv_aware(config):
        raise UnsupportedFeature(
            "KVAwareRouter needs Ray's own ingress, which imports vllm: give its build_openai_app "
            "server_cls=JengineServer. PrefixCacheAffinityRouter works here."
        )
    options = {**ONGOING, **kind.get_deployment_options(config)}
    name = config.model_id.replace("/", "--").replace(".", "_")
    options.setdefault("name", f"{prefix or kind.__name__}:{name}")
    return serve.deployment(kind, **options).bind(config, **bound)


class Ingress:
    """The deployment that clients talk to."""

    def __init__(
        self, servers: Mapping[str, DeploymentHandle], adapted: list[str], keys: Sequence[str]
    ) -> None:
        """`keys`: any of them opens the list of models. Replicas check those of requests."""
        self._keys = Keys(keys)
        self._servers = {name: one.options(stream=True) for name, one in servers.items()}
        self._adapted = frozenset(adapted)
        self._began = int(time.time())

    async def __serve_build_asgi_app__(self) -> Starlette:
        """Ray's hook: the application of this replica."""
        routes = [Route(path, self.passed_on, methods=["POST"]) for path in PASSED]
        return Starlette(
            routes=[
                *routes,
                Route("/v1/models", self.models),
                Route("/v1/models/{name:path}", self.model),
            ],
            middleware=[
                Middleware(RequestLimits, settings=ServerSettings()),
                Middleware(
                    Authentication, access=access_of, api_keys=self._keys, admin_keys=Keys(())
                ),
            ],
            exception_handlers={HTTPException: refused},
        )

    async def models(self, http: Request) -> Response:
        """The models without their adapters."""
        return json_response({"object": "list", "data": [self._card(one) for one in self._servers]})

    async def model(self, http: Request) -> Response:
        name = http.path_params["name"]
        return json_response(self._card(name)) if name in self._servers else no_model(name).response

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "jengine"}

    async def passed_on(self, http: Request) -> Response:
        """The answer of a replica."""
        try:
            body = await whole_body(http)
            headers = [(name, value) for name, value in http.headers.raw if name != b"host"]
            asked = ForwardedRequest("POST", route_path(http.scope), headers, body)
            server = self._server_of(model_in(body, http.headers.get("content-type", "")))
            answer = server.http.remote(asked)
            status, head = await anext(answer)
        except (RayError, RayServeException) as error:
            return unavailable(error).response
        except Exception as error:  # noqa: BLE001 - the table of errors knows them all
            return api_error(error).response
        response = StreamingResponse(rest_of(answer), status)
        response.raw_headers = head
        return response

    def _server_of(self, model: str | None) -> DeploymentHandle:
        """A model's replicas; those that have the adapter go first for MODEL:ADAPTER."""
        if model is None and len(self._servers) == 1:
            (model,) = self._servers
        if model in self._servers:
            return self._servers[model]
        base = (model or "").partition(":")[0]
        if base not in self._adapted:
            raise no_model(model)
        return self._servers[base].options(multiplexed_model_id=model)


def access_of(path: str) -> Access:
    return Access.KEY if path.startswith("/v1/models") else Access.PUBLIC


async def rest_of(answer: Any) -> AsyncGenerator[bytes, None]:
    """The body. When the client leaves, the replica ends its request."""
    try:
        async for part in answer:
            yield part
    finally:
        answer.cancel()


def model_in(body: bytes, content_type: str) -> str | None:
    """The model named in a request; other defects of the body are left to the replica."""
    if content_type.startswith("multipart/"):
        named = [one for one in form_parts(body, content_type) if one.name == "model"]
        return field_of(body, named[0]) if named else None
    try:
        return msgspec.json.decode(body, type=Named).model
    except msgspec.MsgspecError:
        return None


def no_model(name: str | None) -> ApiError:
    return ApiError(404, f"The model `{name or '':.200}` does not exist.", param="model")


def unavailable(error: Exception) -> ApiError:
    logger.warning("No replica has answered a request", exc_info=error)
    return ApiError(503, f"No replica has answered ({type(error).__name__}). Send it again.")
