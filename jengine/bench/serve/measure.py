"""One load from settings to result: query the server, send, compute metrics, save.

In: settings. Out: the result, for people and for files.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from jengine.bench.machine import client_surroundings
from jengine.bench.serve.figures import details, figures
from jengine.bench.serve.load import LoadGenerator, ServedLoad
from jengine.bench.serve.requests import RequestWriter
from jengine.bench.serve.samples import Conversation, conversations
from jengine.bench.serve.settings import LoadSettings
from jengine.bench.serve.vocabulary import WordList, vocabulary_of
from jengine.client.address import Address
from jengine.client.connection import Connections, security_of
from jengine.client.errors import ServerFailed
from jengine.client.server import Server, key_of
from jengine.errors import CapacityError, ConfigError, RequestError


class Target:
    """A server under load: name, model and address."""

    def __init__(self, settings: LoadSettings) -> None:
        self.address = Address.of(settings.url)
        self.key = key_of(settings.api_key)
        self._server = Server(self.address, self.key, insecure=settings.insecure)
        self.security = security_of(self.address, settings.insecure)
        listed = self._wait_for(settings.ready_check_timeout_sec)
        name = settings.model_name
        model = next((one for one in listed if one.get("id") == name), None)
        if name is not None and model is None:
            served = ", ".join(str(one.get("id")) for one in listed)
            raise ConfigError(f"--model {name}: {self.address} serves {served}.")
        model = model or listed[0]
        self.model, self.root = str(model["id"]), str(model.get("root") or model["id"])
        self.version = f"{model.get('owned_by') or 'server'} {self._version()}".strip()

    def headers(self, settings: LoadSettings) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {**key, **settings.headers}

    def _wait_for(self, seconds: float) -> list[dict[str, Any]]:
        end = time.monotonic() + seconds
        while True:
            try:
                return self._server.models()
            except (ServerFailed, CapacityError):
                if time.monotonic() >= end:
                    raise
            time.sleep(0.5)

    def _version(self) -> str:
        try:
            return str(self._server.get("/version")["version"])
        except (ServerFailed, RequestError, CapacityError, KeyError, TypeError):
            return ""  # not every server has this route


def measure(
    settings: LoadSettings,
    command: str,
    note: Callable[[str], object],
    more: Callable[[ServedLoad], dict[str, Any]] = lambda _: {},
) -> dict[str, Any]:
    """Run one load. `note` receives progress lines, `more` adds metrics."""
    target = Target(settings)
    vocabulary = vocabulary_of(settings.tokenizer, target.root)
    work = conversations(settings, vocabulary)
    for line in remarks(settings, target, vocabulary):
        note(line)
    # A token costs asyncio's own loop more, and the next ones wait meanwhile.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        load = runner.run(send(settings, target, work))
    result = {
        "command": command,
        **about(settings, target, vocabulary, work),
        **figures(load, settings),
        **more(load),
    }
    if settings.save_result or settings.append_result:
        note(f"saved: {save(result, details(load), settings)}")
    return result


async def send(settings: LoadSettings, target: Target, work: list[Conversation]) -> ServedLoad:
    """Send warm-up requests, then the load."""
    connections = Connections(target.address, target.security)
    writer = RequestWriter(settings, target.address, target.model, target.headers(settings))
    total = sum(map(len, work))
    with tqdm(total=total, disable=settings.disable_tqdm or None, unit="req") as bar:
        try:
            if settings.num_warmups:
                warm = [work[number % len(work)][:1] for number in range(settings.num_warmups)]
                first = await LoadGenerator(settings, connections, writer).run(warm)
                refuse_failed(first)
            return await LoadGenerator(settings, connections, writer, bar.update).run(work)
        finally:
            connections.close()


def refuse_failed(load: ServedLoad) -> None:
    """Raise if a warm-up request failed, before the load is sent."""
    failed = [reply for reply in load.replies if not reply.success]
    if failed:
        raise ServerFailed(f"a warm-up request failed: {failed[0].error}")


def remarks(settings: LoadSettings, target: Target, vocabulary: WordList) -> list[str]:
    """Description of the load, printed before it starts."""
    lines = [f"{target.version} at {target.address}{settings.route}, model {target.model}"]
    if settings.trace is None and settings.dataset_name != "custom" and not vocabulary.exact:
        lines.append(
            "prompts are common words, so their lengths in tokens are approximate: name the "
            "model's folder with --tokenizer"
        )
    return lines


def about(
    settings: LoadSettings, target: Target, vocabulary: WordList, work: list[Conversation]
) -> dict[str, Any]:
    """Load settings and environment, under the keys of vLLM's result files where those exist."""
    infinite = math.isinf(settings.request_rate)
    ramp = {
        "ramp_up_strategy": settings.ramp_up_strategy,
        "ramp_up_start_rps": settings.ramp_up_start_rps,
        "ramp_up_end_rps": settings.ramp_up_end_rps,
    }
    return {
        "bench": "serve",
        **client_surroundings(),
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "server": target.version,
        "endpoint_type": settings.backend,
        "backend": settings.backend,
        "label": settings.label,
        "model_id": target.model,
        "tokenizer_id": vocabulary.name or target.root,
        "num_prompts": sum(map(len, work)),
        **settings.notes,
        "request_rate": "inf" if infinite else settings.request_rate,
        "burstiness": settings.burstiness,
        "max_concurrency": settings.max_concurrency,
        **(ramp if settings.ramp_up_strategy else {}),
    }


def save(result: dict[str, Any], detailed: dict[str, Any], settings: LoadSettings) -> Path:
    """Save the result in vLLM's file layout."""
    file = Path(settings.result_dir or ".") / (settings.result_filename or file_name(result))
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = {**result, **(detailed if settings.save_detailed else {})}
    with file.open("a" if settings.append_result else "w", encoding="utf-8") as out:
        if settings.append_result and out.tell():
            out.write("\n")
        json.dump(whole, out)
    return file


def file_name(result: dict[str, Any]) -> str:
    """vLLM's default file name of a result."""
    model = result["model_id"].split("/")[-1]
    limit = result["max_concurrency"]
    together = "" if limit is None else f"-concurrency{limit}"
    rate = f"{result['request_rate']}qps"
    if "ramp_up_strategy" in result:
        rate = (
            f"ramp-up-{result['ramp_up_strategy']}-{result['ramp_up_start_rps']}qps-"
            f"{result['ramp_up_end_rps']}qps"
        )
    label = result["label"] or result["backend"]
    return f"{label}-{rate}{together}-{model}-{result['date']}.json"
