"""Settings of devices, replicas, nodes and the executor. No jax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from jengine.assembly.settings.expert_settings import balance_config
from jengine.assembly.settings.nodes import Nodes
from jengine.assembly.settings.ranks import Ranks
from jengine.assembly.settings.setting import ALL, CORE, RANK, WORKER, Setting
from jengine.config import BalanceConfig
from jengine.executor.choice import checked_executor


@dataclass(kw_only=True)
class ParallelArgs:
    """How the model is split over devices, replicas and nodes."""

    tensor_parallel_size: Annotated[int | None, Setting(
        "devices to split each layer over",
        short="-tp", size=True, recorded=True, commands="compare"
    )] = None  # fmt: skip
    pipeline_parallel_size: Annotated[int | None, Setting(
        "stages of layers, each on separate devices", short="-pp", size=True, recorded=True
    )] = None  # fmt: skip
    # The engine's blocks are this many times as long.
    decode_context_parallel_size: Annotated[int, Setting(
        "devices of one KV head that divide the cached tokens of each request among them, "
        "instead of holding copies", short="-dcp", size=True
    )] = 1  # fmt: skip
    prefill_context_parallel_size: Annotated[int, Setting(
        "groups of devices, each with all weights, that divide the tokens of each step among "
        "them", short="-pcp", size=True
    )] = 1  # fmt: skip
    # Limits of requests and memory apply per replica.
    data_parallel_size: Annotated[int | None, Setting(
        "copies of the model, each on separate devices", short="-dp", size=True
    )] = None  # fmt: skip
    # "mp" means "process". If a replica's process dies, only its requests fail.
    data_parallel_backend: Annotated[Literal["local", "process", "mp", "ray"], Setting(
        "local: copies run in one process; process (serve): each in its own; ray: on the nodes "
        "of a Ray cluster", short="-dpb", kept_from=CORE | WORKER
    )] = "local"  # fmt: skip
    data_parallel_options: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --data-parallel-options.KEY VALUE; keys, for ray: address, cpus, gpus, "
        "environment, start, stop", kept_from=CORE | RANK
    )] = None  # fmt: skip
    data_parallel_size_local: Annotated[int | None, Setting(
        "copies of the model on this host; the others join from theirs",
        short="-dpl", kept_from=CORE
    )] = None  # fmt: skip
    data_parallel_start_rank: Annotated[int | None, Setting(
        "with --headless: the number of this host's first copy", short="-dpr", kept_from=CORE
    )] = None  # fmt: skip
    data_parallel_address: Annotated[str | None, Setting(
        "address of the host with the front, where copies on others join",
        short="-dpa", kept_from=CORE
    )] = None  # fmt: skip
    data_parallel_rpc_port: Annotated[int, Setting(
        "port there", short="-dpp", kept_from=CORE
    )] = 29550  # fmt: skip
    # Shared by the hosts; also encrypts their messages.
    data_parallel_secret: Annotated[str | None, Setting(
        kept_from=CORE
    )] = field(default=None, repr=False)  # fmt: skip
    enable_expert_parallel: Annotated[bool, Setting(
        "give each of these devices some experts whole, not a part of each",
        short="-ep", recorded=True
    )] = False  # fmt: skip
    all2all_backend: Annotated[Literal["allgather_reducescatter", "all_to_all"], Setting(
        "whether devices with whole experts exchange sums of all tokens "
        "(allgather_reducescatter) or send tokens to their experts (all_to_all)", recorded=True
    )] = "allgather_reducescatter"  # fmt: skip
    joint_replicas: Annotated[bool, Setting(
        "replicas run each step together, with experts spread over all their devices"
    )] = False  # fmt: skip
    enable_eplb: Annotated[bool, Setting(
        "move experts between devices so that their loads are equal"
    )] = False  # fmt: skip
    # {"num_redundant_experts": 8, "window_size": 1000, "step_interval": 3000}
    eplb_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --eplb-config.KEY VALUE; keys: num_redundant_experts, window_size, "
        "step_interval, log_balancedness"
    )] = None  # fmt: skip
    enable_return_routed_experts: Annotated[bool, Setting(
        "return the experts that each token picked"
    )] = False  # fmt: skip
    # A user's jax.sharding.Mesh ("pp" is the axis of stages), and roles of its axes, {"data":
    # "replica"}: also "tensor", "stage", and "first", where the engine uses the first devices only
    # and arrays are gathered. By default layers are sharded over all axes except those called data,
    # fsdp, dp, batch or replica, which are replicas if there are others.
    mesh: Annotated[Any, Setting(kept_from=ALL)] = None
    mesh_axes: Mapping[str, Any] | None = None
    # One process per node; only node 0 takes requests.
    nnodes: Annotated[int, Setting(
        "nodes that the model is split over; node 0 has the API, the others --headless",
        short="-n", kept_from=WORKER
    )] = 1  # fmt: skip
    node_rank: Annotated[int, Setting("the number of this node", short="-r", kept_from=WORKER)] = 0
    master_addr: Annotated[str, Setting(
        "address of node 0, where the others meet it", kept_from=WORKER
    )] = "127.0.0.1"  # fmt: skip
    master_port: Annotated[int, Setting("port there", kept_from=WORKER)] = 29501
    multihost: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --multihost.KEY VALUE: how long nodes wait for one another; keys: address, "
        "meet, silence, stuck, compare_every", kept_from=WORKER
    )] = None  # fmt: skip
    executor: Annotated[str, Setting(
        "what runs the steps: auto, local, multihost, ray, or package.module:Class",
        kept_from=WORKER, check=checked_executor
    )] = "auto"  # fmt: skip
    executor_options: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --executor-options.KEY VALUE; the executor knows the keys", kept_from=WORKER
    )] = None  # fmt: skip
    # Whether scheduler and steps run in a process separate from the API's.
    multiprocess: Annotated[bool, Setting(kept_from=CORE | WORKER | RANK)] = False

    @property
    def nodes(self) -> Nodes:
        """The nodes that share a replica's steps."""
        return Nodes(self.nnodes, self.node_rank, self.master_addr, self.master_port)

    @property
    def ranks(self) -> Ranks:
        """The data-parallel ranks of this host and others."""
        sizes = (self.data_parallel_size, self.data_parallel_size_local,
                 self.data_parallel_start_rank)  # fmt: skip
        if self.data_parallel_backend == "ray":
            return Ranks.on_ray(*sizes)
        return Ranks.checked(*sizes, self.data_parallel_address)

    @property
    def replicas_in_processes(self) -> bool:
        """Whether there are several replicas, each in its own process."""
        ranks = self.ranks
        return ranks.size > 1 and (self.data_parallel_backend != "local" or ranks.elsewhere > 0)

    @property
    def devices_per_replica(self) -> int:
        """Number of devices per replica, by the settings."""
        per_stage = (self.tensor_parallel_size or 1) * self.prefill_context_parallel_size
        return per_stage * (self.pipeline_parallel_size or 1)

    @property
    def expert_balance(self) -> BalanceConfig | None:
        """Parsed settings of expert rebalancing; None if it is off."""
        return balance_config(self.enable_eplb, self.eplb_config)


@dataclass(frozen=True)
class ParallelSettings:
    """How a model is split over devices, replicas and nodes, and how experts are placed."""

    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    decode_context_parallel_size: int
    prefill_context_parallel_size: int
    data_parallel_size: int | None
    data_parallel_backend: str
    data_parallel_secret: str | None = field(repr=False)
    mesh: Any
    mesh_axes: Mapping[str, Any] | None
    enable_expert_parallel: bool
    all2all_backend: str
    joint_replicas: bool
    expert_balance: BalanceConfig | None
    nodes: Nodes
    devices_per_replica: int
    multihost: Mapping[str, Any] | None
    executor: str
    executor_options: Mapping[str, Any] | None
    replicas_in_processes: bool
