"""Handles calls of the server's other API processes.

In: a service and a question. Out: the answer as plain data. Must not know sockets.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from jengine.server.peers.messages import (
    AbortRequests,
    AskFamilies,
    GetResponse,
    LoadAdapter,
    PausePeer,
    RemoveResponse,
    ResumePeer,
    StoredFrame,
    UnloadAdapter,
)
from jengine.server.serving.service import Service
from jengine.wire.message import Question


async def answer_peer(service: Service, question: Question[Any]) -> Any:
    """Answer another API process. Calls that wait for a step run in a thread."""
    match question:
        case AskFamilies():
            return service.own_families()
        case GetResponse(response_id):
            found = service.responses.get(response_id)
            if found is None:
                return None
            return StoredFrame(msgspec.json.encode(found.response), found.items)
        case RemoveResponse(response_id):
            return service.responses.remove(response_id)
        case AbortRequests(request_ids):
            return service.abort(request_ids)
        case PausePeer(mode, refusal):
            return await asyncio.to_thread(service.live.requests.pause, mode, refusal)
        case ResumePeer():
            return await asyncio.to_thread(service.live.requests.resume)
        case LoadAdapter(name, folder, in_place):
            load = service.live.adapters.load
            return await asyncio.to_thread(load, name, folder, in_place=in_place)
        case UnloadAdapter(name):
            return await asyncio.to_thread(service.live.adapters.unload, name)
