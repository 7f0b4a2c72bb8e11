"""Applications on Ray Serve for tests, with a cluster of their own that listens on loopback.

usage: python -m tests.integrations.ray_serve_program SCENARIO FOLDER PORT; the last line is JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.llm._internal.serve.utils.broadcast import broadcast
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application

from jengine.demo import model_path
from jengine.integrations.ray_serve import (
    LLMConfig,
    PrefixCacheAffinityRouter,
    build_openai_app,
    build_pd_openai_app,
)
from tests.lora.adapters import write_adapter

SMALL = {
    "max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 256, "enforce_eager": True,
}  # fmt: skip
SCRIPTED = {
    "executor": "tests.server.scripted:Executor", "max_num_seqs": 4,
    "executor_options": {"step_seconds": 0.1, "checks": False},
}  # fmt: skip
SERVER = "JengineServer:demo"
LIGHT = {"ray_actor_options": {"num_cpus": 0.1}}
ASK: Any = [{"role": "user", "content": "What is 23 + 45?"}]
GREEDY: dict[str, Any] = {"model": "demo", "messages": ASK, "temperature": 0.0, "max_tokens": 12}


def config(name: str = "demo", engine: dict[str, Any] = SMALL, **more: Any) -> LLMConfig:
    return LLMConfig(
        model_loading_config={"model_id": name, "model_source": "demo"},
        engine_kwargs=dict(engine),
        **{"deployment_config": LIGHT, **more},
    )


@contextmanager
def served(*configs: LLMConfig) -> Iterator[openai.OpenAI]:
    """A client of an application."""
    app = build_openai_app({"llm_configs": list(configs), "ingress_deployment_config": LIGHT})
    with running(app) as client:
        yield client


@contextmanager
def running(app: Application) -> Iterator[openai.OpenAI]:
    serve.run(app)
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{sys.argv[3]}/v1", api_key="key", max_retries=0
    ) as client:
        yield client


def status_of(ask: Any, **given: Any) -> int:
    """The status of a request that is refused."""
    try:
        ask(**given)
    except openai.APIStatusError as error:
        assert error.body["message"], error  # type: ignore[index]
        return error.status_code
    return 200


def on_all(name: str, call: str, **kwargs: Any) -> list[Any]:
    """Call a method of every replica of a deployment."""
    handle = serve.get_deployment_handle(name, "default")
    return broadcast(handle, call, kwargs=kwargs)


def replicas(name: str) -> int:
    """Replicas that run."""
    found = serve.status().applications["default"].deployments[name].replica_states
    return found.get("RUNNING", 0)


def until(true: Any, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)


def answered(folder: Path) -> dict[str, Any]:
    """Two models with one ingress: what generates, with adapters, and what pools."""
    write_adapter(folder / "shout", model_path(), seed=1)
    adapted = config(
        engine={**SMALL, "lora_dirs": [str(folder)], "enable_sleep_mode": True},
        lora_config={"max_num_adapters_per_replica": 2},
    )
    words = config("words", {**SMALL, "runner": "pooling", "convert": "embed"})
    ear = config("ear", {**SMALL, "max_model_len": 32})
    ear.model_loading_config.model_source = str(folder / "ear")
    with served(adapted, words, ear) as client:
        create = client.chat.completions.create
        one = create(**GREEDY)
        stream = [*create(**GREEDY, stream=True, stream_options={"include_usage": True})]
        text = client.completions.create(model="demo", prompt="one two", max_tokens=4)
        embedded = client.embeddings.create(model="words", input=["a b", "c"])
        pairs: Any = client.post(
            "/score",
            cast_to=object,
            body={"model": "words", "text_1": "a b", "text_2": ["a b", "c"]},
        )
        found = {
            "models": [model.id for model in client.models.list()],
            "model": client.models.retrieve("words").id,
            "text": one.choices[0].message.content,
            "streamed": said_in(stream[:-1]),
            "usage": [one.usage.model_dump(), stream[-1].usage.model_dump()],
            "completion": text.usage.completion_tokens,
            "embedded": [len(row.embedding) for row in embedded.data],
            "scores": [row["score"] for row in pairs["data"]],
            "heard": client.audio.transcriptions.create(
                model="ear",
                file=("it.wav", (folder / "it.wav").read_bytes()),
                language="en",
                extra_body={"max_completion_tokens": 6},
            ).text,
            "adapted": create(**{**GREEDY, "model": "demo:shout"}).choices[0].message.content,
            "refused": [
                status_of(create, **{**GREEDY, "model": "other"}),
                status_of(create, **{**GREEDY, "model": "demo:none"}),
                status_of(create, **{**GREEDY, "model": "words:shout"}),
                status_of(create, **{**GREEDY, "temperature": -1.0}),
                status_of(create, **{**GREEDY, "model": "words"}),
                status_of(client.embeddings.create, model="demo", input="a"),
            ],
        }
        on_all(SERVER, "sleep", level=1)
        found["asleep"] = on_all(SERVER, "is_sleeping")
        on_all(SERVER, "wakeup")
        found["awake"] = on_all(SERVER, "is_sleeping")
        found["after"] = create(**GREEDY).choices[0].message.content
        on_all(SERVER, "reset_prefix_cache")
        return found


def replaced(folder: Path) -> dict[str, Any]:
    """A replica whose client leaves, and whose engine is killed."""
    quick = {**LIGHT, "health_check_period_s": 1.0}
    with served(config(engine=SCRIPTED, deployment_config=quick)) as client:
        create = client.chat.completions.create
        first = status_of(create, **GREEDY)
        long = {**GREEDY, "max_tokens": 400, "stream": True, "extra_body": {"ignore_eos": True}}
        with create(**long) as left:  # of 40 seconds
            next(iter(left))
        load = {"method": "GET", "path": "/load"}
        until(lambda: on_all(SERVER, "_order", **load) == [{"server_load": 0}], 10)
        (core,) = cores()
        os.kill(core, signal.SIGKILL)
        until(lambda: status_of(create, **GREEDY) == 200 and cores() != [core])
        return {"first": first}


def prefixed(folder: Path) -> dict[str, Any]:
    """Prompts that come again, with Ray's prefix-aware router before two replicas."""
    router = RequestRouterConfig(request_router_class=PrefixCacheAffinityRouter)
    two = {**LIGHT, "num_replicas": 2, "request_router_config": router}
    engine = {**SCRIPTED, "enable_prompt_tokens_details": True}
    with served(config(engine=engine, deployment_config=two)) as client:
        cached: list[int] = []
        for turn in range(5):
            for number in range(4):
                text = f"{number} is a number, as all others are. " * 8 + f"Turn {turn}"
                asked: Any = [{"role": "user", "content": text}]
                answer = client.chat.completions.create(**{**GREEDY, "messages": asked})
                cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        return {"cached": cached}


def apart(folder: Path) -> dict[str, Any]:
    """Prefill and decode in different replicas; the engine that computes prompts is killed."""

    def half(role: str, replicas: int) -> LLMConfig:
        transfer = {
            "kv_connector": "ZmqConnector", "kv_role": role, "kv_ip": "127.0.0.1",
            "kv_connector_extra_config": {"secret": "a text of this test alone"},
        }  # fmt: skip
        engine = {**SMALL, "enable_prompt_tokens_details": True, "kv_transfer_config": transfer}
        quick = {**LIGHT, "health_check_period_s": 1.0, "num_replicas": replicas}
        return config(engine=engine, deployment_config=quick)

    app = build_pd_openai_app({
        "prefill_config": half("kv_producer", 2),
        "decode_config": half("kv_consumer", 1),
        "ingress_deployment_config": LIGHT,
    })  # fmt: skip
    with running(app) as client:
        create = client.chat.completions.create

        def asked(number: int) -> dict[str, Any]:
            text = f"{number} is a number, as all others are. " * 8
            return {**GREEDY, "messages": [{"role": "user", "content": text}]}

        answers = [create(**asked(number)) for number in range(4)]
        stream = [*create(**asked(4), stream=True)]
        long = {**asked(5), "max_tokens": 200, "stream": True, "extra_body": {"ignore_eos": True}}
        bystander = create(**long)
        heard = [next(iter(bystander))]
        producers = cores("Prefill")
        for core in producers:
            os.kill(core, signal.SIGKILL)
        without = create(**asked(6))
        heard += [*bystander]
        numbers = itertools.count(7)
        until(lambda: create(**asked(next(numbers))).usage.prompt_tokens_details.cached_tokens)
        return {
            "texts": [one.choices[0].message.content for one in answers],
            "cached": [one.usage.prompt_tokens_details.cached_tokens for one in answers],
            "tokens": [one.usage.prompt_tokens for one in answers],
            "streamed": said_in(stream),
            "bystander": said_in(heard),
            "without": without.choices[0].message.content,
            "cached_without": without.usage.prompt_tokens_details.cached_tokens,
            "prompts": [asked(number)["messages"] for number in range(7)],
            "killed": len(producers),
            "refused": status_of(create, **{**asked(0), "temperature": -1.0}),
        }


def said_in(stream: list[Any]) -> str:
    return "".join(part.choices[0].delta.content or "" for part in stream)


def cores(replica: str = "") -> list[int]:
    """Engine processes of replicas with such a name."""
    name = "jengine.assembly.processes.core_process"
    found = psutil.process_iter(["cmdline", "status"])
    return [
        one.pid
        for one in found
        if name in " ".join(one.info["cmdline"] or [])
        and one.info["status"] != "zombie"
        and any(replica in above.name() for above in one.parents())
    ]


def scaled(folder: Path) -> dict[str, Any]:
    """One to three replicas under load, and back while requests go on."""
    scaling = {
        "min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 4,
        "upscale_delay_s": 1.0, "downscale_delay_s": 2.0, "metrics_interval_s": 0.5,
        "look_back_period_s": 2.0,
    }  # fmt: skip
    options = {**LIGHT, "autoscaling_config": scaling}
    with served(config(engine=SCRIPTED, deployment_config=options)) as client:
        counts = [replicas(SERVER)]
        grown, shrunk = threading.Event(), threading.Event()
        long = {
            **GREEDY, "max_tokens": 40, "stream": True, "stream_options": {"include_usage": True},
            "extra_body": {"ignore_eos": True},
        }  # fmt: skip

        def ask(done: threading.Event) -> list[str]:
            """Ask again and again; each answer takes about 4 seconds."""
            said = []
            while not done.is_set():
                *_, last, usage = client.chat.completions.create(**long)
                said.append(f"{usage.usage.completion_tokens} {last.choices[0].finish_reason}")
            return said

        with ThreadPoolExecutor(16) as pool:
            asking = [pool.submit(ask, grown) for _ in range(14)] + [pool.submit(ask, shrunk)]
            try:
                until(lambda: replicas(SERVER) == 3, 200)
                counts.append(3)
                time.sleep(5)  # so that all three have requests when one is enough
                grown.set()
                until(lambda: replicas(SERVER) == 1, 100)
                counts.append(1)
            finally:
                grown.set()
                shrunk.set()
            said = [one for each in asking for one in each.result()]
        return {"counts": counts, "answers": said}


def main() -> None:
    scenario, folder, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    cluster = Cluster(True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        told = globals()[scenario](folder)
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
