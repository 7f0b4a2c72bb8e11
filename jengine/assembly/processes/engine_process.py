"""The front's side of an engine whose core runs in a separate process. No jax.

In: EngineArgs. Out: an Engine, once its core is ready. This process reads the tokenizer, the core
everything else. `core_process` is the core's program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jengine.assembly.engine import Engine
from jengine.assembly.front_side import engine_of
from jengine.assembly.model_facts import ModelSource, generation_of, tokenizer_of
from jengine.assembly.processes.core_return import CoreReturn
from jengine.assembly.processes.cores import clients_of, launch_cores, shut_down
from jengine.assembly.processes.deployment import Deployment, deployment_of
from jengine.assembly.processes.other_ranks import other_ranks
from jengine.assembly.processes.replica_checks import check_replicas, check_version
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from jengine.config import CacheConfig
from jengine.distributed.process_replicas import ProcessReplicas
from jengine.engine.client import EngineClient
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.process.startup import START_SECONDS, Tell
from jengine.engine.process.to_front import Progress, Ready
from jengine.grammar.shared_tokenizer import TokenizerData, data_of
from jengine.scheduler.orders import order_of
from jengine.text.tokenizer import Tokenizer


def start_engine_process(
    args: EngineArgs, tell: Tell | None = None, *, seconds: float = START_SECONDS
) -> Engine:
    """Start a core, or one per data-parallel replica, and return when all are ready.

    Raises what the core's construction raises. `tell` gets its progress instead of a bar; a core
    that is silent for `seconds` is given up.
    """
    deployment = deployment_of(args)
    tell = tell or shown(args.show_progress)
    if args.replicas_in_processes:
        return start_replicas(deployment, tell, seconds)
    (client,) = launch_cores(deployment)
    try:
        return engine_over(deployment, client, tell, seconds)
    except BaseException:
        client.shutdown()
        raise


def start_replicas(deployment: Deployment, tell: Tell, seconds: float) -> Engine:
    """Start this host's cores, wait for those of other hosts, and return when all are ready."""
    mailbox, others = Mailbox(), other_ranks(deployment)
    clients: list[ProcessClient] = []
    try:
        clients += launch_cores(deployment, mailbox)
        if others is not None:
            clients += clients_of(others.wait(tell, seconds), mailbox, deployment.secret)
        engine = replicas_over(deployment, clients, mailbox, tell, seconds)
    except BaseException:
        shut_down(clients)
        if others is not None:
            others.close()
        raise
    if others is not None:
        others.when_back(core_return(engine).take)
        engine.client.when_dead(lambda _: others.close())  # closed with this engine
    return engine


def connect_cores(
    deployment: Deployment, addresses: Sequence[str], tell: Tell, seconds: float = START_SECONDS
) -> Engine:
    """An engine over cores that another process has started.

    Shutting it down leaves them running.
    """
    args, mailbox = deployment.args, Mailbox()
    clients: list[ProcessClient] = []
    try:
        if not args.replicas_in_processes:
            (address,) = addresses
            clients = [ProcessClient(address)]
            return engine_over(deployment, clients[0], tell, seconds)
        secret = deployment.secret if args.ranks.elsewhere else None
        clients = clients_of(addresses, mailbox, secret)
        return replicas_over(deployment, clients, mailbox, tell, seconds)
    except BaseException:
        shut_down(clients)
        raise


def core_return(engine: Engine) -> CoreReturn:
    """Object that reconnects restarted cores of other hosts."""
    assert isinstance(engine.client, ProcessReplicas), "an engine with cores of other hosts"
    assert engine.folder is not None, "an engine in other processes has a folder"
    return CoreReturn(engine.client, Deployment(engine.args, engine.folder).secret)


def replicas_over(
    deployment: Deployment,
    clients: Sequence[ProcessClient],
    mailbox: Mailbox,
    tell: Tell,
    seconds: float,
) -> Engine:
    """Engine over several cores that share a mailbox, once all are ready. `tell` gets the first
    one's progress."""
    tokenizer = tokenizer_of(deployment.args.groups.model, deployment.folder)
    told = tell_tokenizer(clients, tokenizer)
    ready = [
        client.wait_until_ready(tell if index == 0 else None, seconds)
        for index, client in enumerate(clients)
    ]
    check_replicas(clients, ready)
    cache = min((one.cache for one in ready), key=lambda one: one.fewest_blocks)
    client = ProcessReplicas(
        clients, mailbox, cache.block_size, order_of(ready[0].schedule.policy),
        stored_as=cache.stored_as, tokenizer=told,
    )  # fmt: skip
    return front_of(deployment, client, tokenizer, ready[0], cache)


def engine_over(
    deployment: Deployment, client: ProcessClient, tell: Tell | None, seconds: float
) -> Engine:
    """Engine over one core, once it is ready."""
    # While the core loads its weights.
    tokenizer = tokenizer_of(deployment.args.groups.model, deployment.folder)
    tell_tokenizer([client], tokenizer)
    ready = client.wait_until_ready(tell, seconds)
    check_version(client, ready)
    return front_of(deployment, client, tokenizer, ready, ready.cache)


def front_of(
    deployment: Deployment,
    client: EngineClient,
    tokenizer: Tokenizer | None,
    ready: Ready,
    cache: CacheConfig,
) -> Engine:
    """Build the Engine around the client of running cores. `ready`: the first core's message."""
    args, folder = deployment.args, deployment.folder
    generation = generation_of(args.groups.model, folder)
    source = ModelSource(ready.model.config, folder, tokenizer, generation)
    args = replace(args, model=str(folder))
    return engine_of(args, source, client, ready.schedule, cache, ready.platform)


def tell_tokenizer(
    clients: Sequence[ProcessClient], tokenizer: Tokenizer | None
) -> TokenizerData | None:
    """Send the tokenizer, which grammars need, to the cores, and return it. None if grammars do not
    support it: the front then refuses structured output."""
    if tokenizer is None or tokenizer.backend is None:
        return None
    data = data_of(tokenizer)
    for client in clients:
        client.tell_tokenizer(data)
    return data


def shown(wanted: bool | Callable[..., Any] | None) -> Tell:
    """Progress callback that draws bars, if this process shows any."""
    bar = progress_factory(wanted)
    open_bars: dict[str, Any] = {}

    def tell(progress: Progress) -> None:
        if progress.total is None:
            return
        stage = progress.stage
        if stage not in open_bars:
            scale = progress.unit == "B"
            open_bars[stage] = bar(
                total=progress.total, desc=stage, unit=progress.unit, unit_scale=scale
            )
        open_bars[stage].update(progress.done - open_bars[stage].n)
        if progress.done >= progress.total:
            open_bars[stage].close()

    return tell
