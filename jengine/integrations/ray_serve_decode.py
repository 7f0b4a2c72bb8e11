"""Disaggregated prefill on Ray Serve: replicas that decode prompts computed by another deployment.

In: requests of clients. Out: their answers. A connector of `kv_transfer_config` transfers the
blocks; the prefill replica's `kv_transfer_params` travel with the request to decode.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from jengine.connectors.settings import ROLES
from jengine.errors import ConfigError
from jengine.integrations.ray_serve_engine import JengineServer, replica_of
from jengine.integrations.ray_serve_requests import ForwardedRequest
from jengine.routing.prefill import GENERATE, fields_of, gone_on, prompt_only, told_in

logger = logging.getLogger(__name__)
# Seconds to wait for a prefill replica before the prompt is computed here.
PREFILL_SECONDS = 600.0


class DecodeServer(JengineServer):
    """Replicas that have their prompts computed by `prefill_server`."""

    async def __init__(self, llm_config: LLMConfig, prefill_server: DeploymentHandle) -> None:
        await super().__init__(llm_config)
        self._prefill = prefill_server.options(stream=True)

    async def _exchanged(self, asked: ForwardedRequest) -> AsyncGenerator[Any, None]:
        async for part in super()._exchanged(await self._with_prompt(asked)):
            yield part

    async def _with_prompt(self, asked: ForwardedRequest) -> ForwardedRequest:
        """Add the location of the prompt's blocks to a request. Unchanged if no prefill replica has
        computed it: then this replica does, and reports what is wrong with the request."""
        body = fields_of(asked.body) if asked.path in GENERATE else None
        if body is None or body.get("kv_transfer_params") is not None:
            return asked
        try:
            async with asyncio.timeout(PREFILL_SECONDS):
                status, answer = await self._prefilled(replace(asked, body=prompt_only(body)))
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("No prefill replica has computed a prompt", exc_info=error)
            return asked
        told = told_in(answer) if status == 200 else None
        return replace(asked, body=gone_on(body, told)) if told else asked

    async def _prefilled(self, asked: ForwardedRequest) -> tuple[int, bytes]:
        """Status and body of a prefill replica's answer."""
        adapter = serve.get_multiplexed_model_id()
        server = self._prefill.options(multiplexed_model_id=adapter) if adapter else self._prefill
        answer = server.http.remote(asked)
        try:
            (status, _), *parts = [part async for part in answer]
        finally:
            answer.cancel()
        return status, b"".join(parts)


def check_apart(prefill: LLMConfig, decode: LLMConfig) -> None:
    """Raise ConfigError unless decode can go on with what prefill has computed."""
    if prefill.model_id != decode.model_id:
        raise ConfigError(
            f"prefill_config has model_id={prefill.model_id!r} and decode_config "
            f"{decode.model_id!r}: expected the same."
        )
    if (prefill.lora_config is None) != (decode.lora_config is None):
        raise ConfigError("lora_config: expected in both of prefill_config and decode_config.")
    if replica_of(prefill)[1].api_key != replica_of(decode)[1].api_key:
        raise ConfigError("api_key: expected the same in prefill_config and decode_config.")
    for name, config, half, verb in (
        ("prefill_config", prefill, 0, "saves"),
        ("decode_config", decode, 1, "loads"),
    ):
        role = (config.engine_kwargs.get("kv_transfer_config") or {}).get("kv_role")
        fitting = [one for one, halves in ROLES.items() if halves[half]]
        if role not in fitting:
            raise ConfigError(
                f"{name}: kv_transfer_config with kv_role={role!r}. Expected a connector and a "
                f"role that {verb}: {', '.join(fitting)}."
            )
