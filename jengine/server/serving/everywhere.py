"""Operations on all API processes of a server, from whichever one received the request.

In: a service. Out: the operation's effect or result over all processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import msgspec

from jengine.api.async_requests import PauseMode
from jengine.api.sleep_order import SleepOrder, waking
from jengine.metrics.merged_metrics import merged
from jengine.metrics.registry import text_of
from jengine.server.errors import ApiError
from jengine.server.peers.messages import (
    AbortRequests,
    AskFamilies,
    GetResponse,
    LoadAdapter,
    PausePeer,
    PeerError,
    RemoveResponse,
    ResumePeer,
    StoredFrame,
    UnloadAdapter,
)
from jengine.server.serving.peer_answers import answer_peer
from jengine.server.serving.response_store import Identified, StoredResponse
from jengine.server.serving.service import Service

R = TypeVar("R", bound=Identified)
T = TypeVar("T")


async def answers(asked: Awaitable[T]) -> T:
    """Await the other processes' answers. Raises ApiError 503 if one gives none."""
    try:
        return await asked
    except PeerError as error:
        raise ApiError(503, f"{error}. Try again later.") from error


async def metrics_text(service: Service) -> bytes:
    """Prometheus metrics summed over all processes.

    Fails if one process does not answer: counters would appear to decrease.
    """
    own = service.own_families()
    others = await answers(service.peers.ask(AskFamilies()))
    return text_of(merged(own, others))


async def stored_response(
    service: Service, response_id: str, kind: type[R]
) -> StoredResponse[R] | None:
    """Find a stored response in any of the processes."""
    own = service.responses.get(response_id)
    if own is not None:
        return own
    found: list[StoredFrame | None] = await answers(service.peers.ask(GetResponse(response_id)))
    for frame in filter(None, found):
        response = msgspec.json.decode(frame.response, type=kind)
        return StoredResponse(response, frame.items, len(frame.response), time.monotonic())
    return None


async def remove_response(service: Service, response_id: str) -> None:
    """Delete a stored response from whichever process has it."""
    if not service.responses.remove(response_id):
        await answers(service.peers.ask(RemoveResponse(response_id)))


async def abort(service: Service, request_ids: Sequence[str] | None) -> int:
    """Abort requests in all processes by id, or all of them. Returns how many."""
    asked = AbortRequests(None if request_ids is None else list(request_ids))
    return service.abort(request_ids) + sum(await answers(service.peers.ask(asked)))


async def load_adapter(service: Service, name: str, folder: str, *, in_place: bool) -> str:
    """Load a LoRA adapter in all processes, this one first. Returns the message for the client."""
    asked = LoadAdapter(name, folder, in_place)
    said = await answer_peer(service, asked)
    await answers(service.peers.ask(asked))
    return said


async def unload_adapter(service: Service, name: str) -> str:
    """Unload a LoRA adapter in all processes. Returns the message for the client."""
    said = await answer_peer(service, UnloadAdapter(name))
    await answers(service.peers.ask(UnloadAdapter(name)))
    return said


async def sleep(service: Service, order: SleepOrder) -> None:
    """Pause if not paused yet, then free the memory that `order` names."""
    if not service.live.requests.paused:
        await pause(service, order.mode, order.refusal)
    await asyncio.to_thread(service.live.front.client.ask, order.question)


async def wake_up(service: Service, tags: Sequence[str] | None) -> bool:
    """Restore the memory that `tags` name. Returns whether everything is awake; then stepping
    resumes."""
    awake = await asyncio.to_thread(service.live.front.client.ask, waking(tags))
    if awake:
        await resume(service)
    return awake


async def pause(service: Service, mode: PauseMode, refusal: str | None = None) -> None:
    """Stop stepping, after each process has aborted or finished its requests if `mode` says so.

    Processes pause one by one, since a pause stops the steps that the next one needs to finish.
    """
    for index in range(service.peers.count) if mode != "keep" else ():
        await _on(service, index, PausePeer(mode))
        await _on(service, index, ResumePeer())
    for index in range(service.peers.count):
        await _on(service, index, PausePeer("keep", refusal))


async def resume(service: Service) -> None:
    """Resume stepping in all processes."""
    for index in range(service.peers.count):
        await _on(service, index, ResumePeer())


async def _on(service: Service, index: int, question: PausePeer | ResumePeer) -> Any:
    if index == service.peers.board.index:
        return await answer_peer(service, question)
    return await answers(service.peers.ask_one(index, question, seconds=None))
