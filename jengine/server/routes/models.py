"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.adapters import LoRARequest
from jengine.server.http.json_response import json_response
from jengine.server.serving.service import Service


class Permission(msgspec.Struct, kw_only=True):
    """OpenAI's permission object, constant here."""

    id: str
    object: str = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "jengine"
    root: str
    parent: str | None = None
    max_model_len: int | None
    permission: list[Permission]


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelCard]


async def models(service: Service, http: Request) -> Response:
    """List the model's names and the loaded adapters."""
    live = service.live
    cards = [card(service, name) for name in live.names.names]
    cards += [adapter_card(service, adapter) for adapter in live.adapters.all]
    return json_response(ModelList(data=cards))


async def model(service: Service, http: Request) -> Response:
    """Card of one model name, which may contain slashes; of all models without one."""
    name: str = http.path_params["model_id"]
    if not name:  # /v1/models/
        return await models(service, http)
    _, adapter = service.live.adapters.checked(name)
    found = card(service, name) if adapter is None else adapter_card(service, adapter)
    return json_response(found)


def adapter_card(service: Service, adapter: LoRARequest) -> ModelCard:
    """Card of an adapter, with the model as its parent."""
    names = service.live.names
    base = adapter.base_model_name
    return msgspec.structs.replace(
        card(service, adapter.lora_name),
        root=adapter.lora_path,
        parent=base if base in names.names else names.default,
        max_model_len=None,
    )


def card(service: Service, name: str) -> ModelCard:
    live = service.live
    created = live.names.created
    return ModelCard(
        id=name,
        created=created,
        root=live.names.root,
        max_model_len=live.engine.schedule.max_model_len,
        permission=[Permission(id=f"modelperm-{live.names.fingerprint}", created=created)],
    )
