"""Studies of whole fleets: which split of GPUs serves a workload best, at several sizes.

python -m jengine.capacity.simulation.study NAME [--price 3.5]: for each split the highest rate
within the objectives, found by bisection; for a batch, its tokens per second. Fleets are made of
groups with a router each, of which one is simulated by the real scheduler and the rest is alike.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jengine.bench.frame import Benchmark
from jengine.capacity.accelerators import ACCELERATORS
from jengine.capacity.device_layout import checked_layout
from jengine.capacity.paper import Paper, paper_plan
from jengine.capacity.simulation.group import run_group
from jengine.capacity.simulation.replica import ReplicaKind
from jengine.capacity.simulation.results import figures
from jengine.capacity.simulation.scenario import PoolPlan, Scenario, kind_of
from jengine.capacity.simulation.trace import TraceSettings
from jengine.capacity.step_estimate import StepTime, StepWork
from jengine.errors import ConfigError
from jengine.pictures.page import Items, Section, Table, Verbatim, as_markdown

ENOUGH = 0.9  # of requests must be within the objectives
FINER = 1.1  # bisection ends when rates differ by less
GROUP = 8  # GPUs of the smallest group with a router of its own
SIZES = (64, 256, 1024)
MILLION = 1e6
KEPT = Path(__file__).parent / "studies"


class FleetSplit(NamedTuple):
    """Layout of each replica, and the share of GPUs that run prompts only."""

    tp: int
    pp: int = 1
    ep: int = 0
    prompts: int = 0  # of `of` equal parts of the fleet; 0: every replica does both
    of: int = 1

    @property
    def name(self) -> str:
        sizes = {"TP": self.tp, "PP": self.pp, "EP": self.ep}
        words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        apart = f", {self.prompts} prefill : {self.of - self.prompts} decode"
        return " ".join(words) + apart * bool(self.prompts)


@dataclass(frozen=True)
class FleetStudy:
    """A workload, and the splits that are compared for it."""

    title: str
    model: str
    input_len: int
    output_len: int
    splits: tuple[FleetSplit, ...]
    settings: Mapping[str, Any]
    spread: float = 0.5  # standard deviation of lengths over their mean
    objectives: Mapping[str, float] | None = None  # milliseconds; None: a batch
    prompts: int = 0  # of a batch


BATCH = {"max_num_seqs": 512}
QUESTIONS = {
    "chat-70b": FleetStudy(
        "Llama-70B, chat", "llama-70b", 1000, 250,
        (FleetSplit(2), FleetSplit(4), FleetSplit(8), FleetSplit(4, pp=2),
         FleetSplit(4, prompts=1, of=2), FleetSplit(4, prompts=1, of=4)),
        {}, objectives={"ttft": 1000, "tpot": 50},
    ),
    "deepseek-v3": FleetStudy(
        "DeepSeek-V3, experts over 64 GPUs, prefill apart", "deepseek-v3", 1500, 250,
        (FleetSplit(1, ep=64), FleetSplit(1, ep=64, prompts=1, of=4),
         FleetSplit(1, ep=64, prompts=1, of=2), FleetSplit(1, ep=64, prompts=3, of=4)),
        {"max_num_batched_tokens": 4096}, objectives={"ttft": 2000, "tpot": 60},
    ),
    "batch-70b": FleetStudy(
        "Llama-70B, 10 million prompts of 2,000 tokens", "llama-70b", 2000, 200,
        (FleetSplit(2), FleetSplit(4), FleetSplit(8), FleetSplit(2, pp=2), FleetSplit(1, pp=4)),
        BATCH, prompts=10_000_000,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class FleetPlan:
    """A split of a number of GPUs into pools."""

    question: FleetStudy
    split: FleetSplit
    gpus: int
    given: argparse.Namespace

    def pools(self) -> list[PoolPlan]:
        """The pools of the whole fleet."""
        apart = self.gpus * self.split.prompts // self.split.of
        decode = self._pool("decode replicas" if apart else "replicas", self.gpus - apart)
        return [self._pool("prefill replicas", apart), decode] if apart else [decode]

    def _pool(self, name: str, gpus: int) -> PoolPlan:
        split = self.split
        if gpus % (split.tp * split.pp) or (split.ep and gpus % split.ep):
            raise ConfigError(f"{gpus} GPUs are not whole replicas of {split.name}.")
        return PoolPlan(
            gpus // (split.tp * split.pp), self.question.model,
            settings=dict(self.question.settings), device=self.given.device, tp=split.tp,
            pp=split.pp, ep=split.ep, name=name, network=self.given.network,
            balancedness=self.given.balancedness if split.ep else 1.0,
        )  # fmt: skip

    @property
    def groups(self) -> int:
        """Number of router groups: each of at least GROUP GPUs and whole replicas of each pool."""
        most = math.gcd(*(pool.replicas for pool in self.pools()))
        return max(n for n in range(1, most + 1) if most % n == 0 and self.gpus // n >= GROUP)

    def figures(self, rate: float, requests: int, objectives: Mapping[str, float]) -> Any:
        """Figures of one group at a rate of the whole fleet."""
        question, groups = self.question, self.groups
        trace = TraceSettings(
            requests, rate, input_len=question.input_len, output_len=question.output_len,
            spread=question.spread, seed=self.given.seed,
        )  # fmt: skip
        scenario = Scenario(self.pools(), trace, routing="load", groups=groups)
        tried = f"{self.gpus} GPUs, {self.split.name}: {requests} requests, {rate:.2f} a second"
        sys.stderr.write(tried + "\n")
        return figures([run_group(scenario, self.kinds, 0)], objectives, self.given.price)

    @cached_property
    def kinds(self) -> list[ReplicaKind]:
        scenario = Scenario(self.pools(), TraceSettings())
        return [kind_of(pool, scenario) for pool in scenario.pools]

    def papers(self) -> dict[str, Paper]:
        """The plan of each pool's replicas, with the mean context of a request."""
        context = self.question.input_len + self.question.output_len // 2
        return {
            pool.name: paper_plan(
                pool.model, pool.settings, ACCELERATORS[pool.device],
                checked_layout(pool.tp, pool.pp, max(pool.ep // pool.tp, 1), None, pool.ep),
                (1, context), pool.network, balancedness=pool.balancedness,
            )
            for pool in self.pools()
        }  # fmt: skip


def served(fleet: FleetPlan) -> dict[str, Any]:
    """The highest rate at which enough requests are within the objectives."""
    seconds, objectives = fleet.given.seconds, fleet.question.objectives or {}

    def at(rate: float) -> dict[str, Any]:
        return fleet.figures(rate, math.ceil(rate * seconds), objectives)

    rate, found, failed = highest(0.2 * fleet.gpus, at, lambda one: one["good_share"] >= ENOUGH)
    late = {name: failed["latency_ms"][name]["p90"] / ms for name, ms in objectives.items()}
    goodput = rate * found["good_share"]
    per_second = goodput * fleet.question.output_len
    return {
        "rate": rate,
        "goodput": goodput,
        "good_share": found["good_share"],
        "output_tokens_per_second": per_second,
        "dollars_per_million_output_tokens": dollars(fleet, per_second),
        "fails_first": max(late, key=late.__getitem__),
        "latency_ms": {name: found["latency_ms"][name]["p90"] for name in objectives},
        **shared_figures(fleet, found),
    }


def highest(
    rate: float, at: Callable[[float], Any], is_good: Callable[[Any], bool]
) -> tuple[float, Any, Any]:
    """The highest good rate, its figures, and those of the lowest rate that is not good."""
    good, bad = (0.0, None), (math.inf, None)
    while bad[0] > FINER * good[0]:
        found = at(rate)
        good, bad = ((rate, found), bad) if is_good(found) else (good, (rate, found))
        rate = 1.6 * good[0] if bad[1] is None else math.sqrt(max(good[0], bad[0] / 4) * bad[0])
        if rate < 1e-3:
            raise ConfigError("No rate is within the objectives: give other ones.")
    return good[0], good[1], bad[1]


def answered(fleet: FleetPlan) -> dict[str, Any]:
    """Throughput on a batch, measured on a sample of it, and the hours that the whole batch
    takes."""
    question = fleet.question
    sample = fleet.given.sample * fleet.gpus
    found = fleet.figures(MILLION, sample, {})
    per_second = found["output_throughput"] * fleet.groups
    prompts = found["request_throughput"] * fleet.groups
    return {
        "sampled": found["completed"],
        "goodput": prompts,
        "hours": question.prompts / prompts / 3600,
        "output_tokens_per_second": per_second,
        "dollars_per_million_output_tokens": dollars(fleet, per_second),
        "dollars": fleet.gpus * fleet.given.price * question.prompts / prompts / 3600,
        **shared_figures(fleet, found),
    }


def dollars(fleet: FleetPlan, tokens_per_second: float) -> float:
    return fleet.gpus * fleet.given.price / 3600 / tokens_per_second * MILLION


def shared_figures(fleet: FleetPlan, found: dict[str, Any]) -> dict[str, Any]:
    """What pools did, and what their mean steps take."""
    pools, papers = found["pools"], fleet.papers()
    return {
        "simulated_requests": found["completed"],
        "pools": {
            name: {
                "busy_share": pool["busy_share"],
                "decode_rows": pool["decode_rows_while_busy"],
                "cache_use": pool["cache_use_while_busy"],
                "preemptions": pool["preemptions"],
                "step_shares": step_shares(papers[name], pool["decode_rows_while_busy"]),
            }
            for name, pool in pools.items()
        },
    }


def step_shares(paper: Paper, rows: float) -> dict[str, float]:
    """Shares of a step's time: of a decode with `rows` rows, or of a prefill without rows."""
    context, chunk = paper.work.context, paper.memory.schedule.largest_chunk
    work = StepWork(max(round(rows * paper.memory.layout.pp), 1), context, chunk)
    step = paper.timing.decode(work) if rows >= 1 else paper.timing.prefill(work)
    seconds = dict(parts_of(paper, step))
    return {name: one / step.expected for name, one in seconds.items()}


def parts_of(paper: Paper, step: StepTime) -> Iterator[tuple[str, float]]:
    """Seconds of reading or arithmetic, whichever is longer, and of the rest."""
    rate = paper.timing.device.bandwidth * paper.timing.assumed.bandwidth_share
    if step.memory_bound:
        yield "reading weights", step.weights_read / rate
        yield "reading the cache", step.cache_read / rate
    else:
        computed = paper.timing.device.flops * paper.timing.assumed.flops_share
        yield "arithmetic", step.operations / computed
    yield "exchanges", sum(one.seconds for one in step.exchanges)
    yield "launches", step.launches


def run(given: argparse.Namespace) -> dict[str, Any]:
    """One study: a row per size and split."""
    question, rows = QUESTIONS[given.name], []
    alike: dict[tuple[Any, ...], dict[str, Any]] = {}
    for gpus in SIZES:
        for split in question.splits:
            fleet = FleetPlan(question, split, gpus, given)
            try:
                pools = fleet.pools()
            except ConfigError as error:
                rows.append({"gpus": gpus, "split": split.name, "not_possible": str(error)})
                continue
            # A fleet of more groups of the same kind does so many times as much.
            key = (split, gpus // fleet.groups)
            if key not in alike:
                alike[key] = (served if question.objectives else answered)(fleet)
                alike[key]["of_gpus"] = gpus
            row = scaled(alike[key], gpus / alike[key]["of_gpus"])
            replicas = {pool.name: pool.replicas for pool in pools}
            rows.append({"gpus": gpus, "split": split.name, "groups": fleet.groups,
                         "replicas": replicas, **row})  # fmt: skip
    return {
        "name": given.name,
        "title": question.title,
        "assumed": {
            "model": question.model, "device": given.device, "step_times": STEP_TIMES,
            "input_len": question.input_len, "output_len": question.output_len,
            "spread": question.spread, "objectives_ms": question.objectives,
            "good_share_at_least": ENOUGH, "prompts": question.prompts,
            "settings": question.settings, "dollars_per_gpu_hour": given.price,
            "balancedness": given.balancedness, "network_gbit": given.network,
            "arrivals_seconds": given.seconds, "sampled_prompts_per_gpu": given.sample,
        },
        "rows": rows,
    }  # fmt: skip


def scaled(found: Mapping[str, Any], times: float) -> dict[str, Any]:
    """Scale figures of one group to `times` as many groups."""
    grows = {"rate": times, "goodput": times, "output_tokens_per_second": times, "hours": 1 / times}
    return {name: value * grows.get(name, 1) if name in grows else value
            for name, value in found.items()}  # fmt: skip


STEP_TIMES = (
    "by roofline: rates of data sheets times the shares that large copies and matmuls reach on an "
    "H200, exchanges by rates and latencies of links; no step of these models was timed"
)


def printed(result: dict[str, Any]) -> str:
    return as_markdown(table(result))


def table(result: dict[str, Any]) -> Table:
    """The best split of each size first."""
    batch = result["assumed"]["prompts"]
    per = "prompts/s" if batch else "goodput, requests/s"
    head = ["GPUs", "split", per, "$ per million output tokens", "limited by"]
    head += ["hours, $"] * bool(batch)
    rows = []
    possible = [row for row in result["rows"] if "goodput" in row]
    for row in sorted(possible, key=lambda one: (one["gpus"], -one["goodput"])):
        cost = row["dollars_per_million_output_tokens"]
        cells = [f"{row['gpus']:,}", row["split"], f"{row['goodput']:,.1f}", f"{cost:.2f}",
                 limits(row)]  # fmt: skip
        cells += [f"{row['hours']:,.1f} h, ${row['dollars']:,.0f}"] if batch else []
        rows.append(cells)
    return Table(head, rows)


def section(result: dict[str, Any]) -> Section:
    """A kept study as part of a page: its best splits, its table, and what was assumed."""
    possible = [row for row in result["rows"] if "goodput" in row]
    sizes = sorted({row["gpus"] for row in possible})
    best = [max((row for row in possible if row["gpus"] == gpus), key=lambda row: row["goodput"])
            for gpus in sizes]  # fmt: skip
    given = (f"{name.replace('_', ' ')}: {value}" for name, value in result["assumed"].items()
             if value)  # fmt: skip
    splits = (
        f"**{row['gpus']:,} GPUs: {row['split']}**, "
        f"${row['dollars_per_million_output_tokens']:.2f} per million output tokens."
        for row in best
    )
    return Section(
        result["title"], Items(splits), table(result), f"Assumed: {'; '.join(given)}.",
        Verbatim(result["command"]), f"Commit {result['commit']}.",
    )  # fmt: skip


def limits(row: Mapping[str, Any]) -> str:
    """The objective that fails first, and the largest part of each pool's step."""
    words = [row["fails_first"].upper()] if "fails_first" in row else []
    for name, pool in row["pools"].items():
        part, share = max(pool["step_shares"].items(), key=lambda one: one[1])
        full = ", cache full" if pool["preemptions"] else ""
        words.append(f"{name}: {part} {share:.0%}, busy {pool['busy_share']:.0%}{full}")
    return "; ".join(words)


FLAGS = {
    "name": {"choices": tuple(QUESTIONS), "help": "the study"},
    "--device": {"choices": tuple(sorted(ACCELERATORS)), "default": "h200", "help": "[h200]"},
    "--price": {"type": float, "default": 3.5, "help": "dollars per GPU and hour [3.5]"},
    "--network": {"type": float, "default": 400.0, "help": "Gbit/s of each GPU [400]"},
    "--balancedness": {"type": float, "default": 0.8, "help": "of experts, with EP [0.8]"},
    "--seconds": {"type": float, "default": 20.0, "help": "of arrivals per rate tried [20]"},
    "--sample": {"type": int, "default": 256, "help": "prompts of a batch per GPU [256]"},
    "--seed": {"type": int, "default": 0, "help": "of times and lengths [0]"},
}
main = Benchmark("study", __doc__, FLAGS, run, printed, "jengine.capacity.simulation").main


if __name__ == "__main__":
    raise SystemExit(main())
