"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, which need the admin key."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from jengine.server.errors import ApiError
from jengine.server.http.body import read_body
from jengine.server.serving import everywhere
from jengine.server.serving.adapter_folders import adapter_folder, allowed_folders
from jengine.server.serving.service import Service


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/load_lora_adapter. The folder is below one of --lora-dirs."""

    lora_name: str | None = None
    lora_path: str | None = None
    load_inplace: bool | None = None


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/unload_lora_adapter."""

    lora_name: str | None = None
    lora_int_id: int | None = None


async def load_lora_adapter(service: Service, http: Request) -> Response:
    """Load a LoRA adapter and serve it under a model name."""
    given = await read_body(http, LoadAdapterRequest, strict=False)
    if not given.lora_name or not given.lora_path:
        raise ApiError(400, "Both 'lora_name' and 'lora_path' must be provided.")
    settings = service.settings
    allowed = allowed_folders(settings.lora_dirs, settings.lora_modules)
    folder = adapter_folder(allowed, given.lora_path)
    in_place = bool(given.load_inplace)
    return PlainTextResponse(
        await everywhere.load_adapter(service, given.lora_name, folder, in_place=in_place)
    )


async def unload_lora_adapter(service: Service, http: Request) -> Response:
    """Stop serving a LoRA adapter."""
    given = await read_body(http, UnloadAdapterRequest, strict=False)
    if not given.lora_name:
        raise ApiError(400, "'lora_name' needs to be provided to unload a LoRA adapter.")
    return PlainTextResponse(await everywhere.unload_adapter(service, given.lora_name))
