"""Compiles a request's grammar off the event loop, before the request enters the engine.

In: sampling parameters. Out: nothing, or an error that names the request's field.
"""

from __future__ import annotations

import asyncio

from jengine.beam_search import BeamSearchParams
from jengine.errors import RequestError
from jengine.sampling_params import SamplingParams
from jengine.server.errors import ApiError
from jengine.server.serving.service import Live
from jengine.structured_outputs import NAME


async def check_grammar(live: Live, params: SamplingParams | BeamSearchParams, field: str) -> None:
    """Compile the grammar in a thread before the request is submitted. Raises on a bad grammar."""
    structured = params.structured_outputs
    if structured is None:
        return
    compiled = live.engine.session.input_processor.grammar
    try:
        await asyncio.to_thread(compiled, structured)
    except RequestError as error:
        text = str(error).replace(f"{NAME}.{structured.kind}", field, 1)
        raise ApiError(400, text, param=field) from error
