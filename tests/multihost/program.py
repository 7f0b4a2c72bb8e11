"""What each process of a test runs: `python -m tests.multihost.program SCENARIO RANK COUNT PORT
FOLDER`. Each scenario is what a user would write, the same in every process. Says JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Collectives of several devices of one CPU need a thread each, however few cores there are.
os.environ["NPROC"] = "16"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jengine
from jengine import SamplingParams
from jengine.errors import ConfigError, RequestError
from jengine.models.parameter import named_parameters
from tests.api import grammar_requests
from tests.api.engines import answers, random_prompts, tiny_engine
from tests.api.few_requests import LONG, PARAMS, PROMPTS
from tests.lora import engines as adapted
from tests.media import encoder_prompts

# More tokens than the cache of the scenario below has room for.
OFFLOADED = random_prompts(100, 70, 110, 90)
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 9, "ignore_eos": True}
MULTIHOST = {"silence": 8, "meet": 120, "compare_every": 4}


def engine(folder: Path, **settings: Any) -> jengine.LLM:
    return tiny_engine(folder, max_model_len=256, multihost=MULTIHOST, **settings)


def run(llm: jengine.LLM) -> list[Any]:
    outputs = llm.generate(PROMPTS, PARAMS)
    assert all(output.outputs[0].logprobs for output in outputs)
    return answers(outputs)


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def refused(error: type[Exception], action: Any) -> str:
    """What an action that must fail says."""
    try:
        action()
    except error as found:
        return str(found)
    raise AssertionError(f"no {error.__name__}")


def same(folder: Path, rank: int) -> None:
    """A model whose layers all processes share."""
    everything(engine(folder))


def staged(folder: Path, rank: int) -> None:
    """A model in two stages of layers."""
    everything(engine(folder, pipeline_parallel_size=2))


def prefill_context(folder: Path, rank: int) -> None:
    """The tokens of a step divided among groups of devices, one in each process."""
    everything(engine(folder, prefill_context_parallel_size=2))


def drafting(folder: Path, rank: int) -> None:
    """Drafts, which the plans of the first process bring to the others."""
    drafted_by(folder, method="ngram", prompt_lookup_min=1)


def device_drafting(folder: Path, rank: int) -> None:
    """Drafts by a model that all processes share."""
    drafted_by(folder, method="draft_model", model=str(folder.parent / "other"))


def suffixes(folder: Path, rank: int) -> None:
    """Drafts out of past answers, for a model with recurrent layers."""
    drafted_by(folder, method="suffix")


def headed(folder: Path, rank: int) -> None:
    """Drafts by a head on hidden states, for a model with recurrent layers."""
    drafted_by(folder, method="eagle3", model=str(folder.parent / "heads"))


def drafted_by(folder: Path, **method: Any) -> None:
    """Answers with three drafts in each decode, the second time with cached prefixes."""
    drafts = {**method, "num_speculative_tokens": 3, "adaptive": False}
    ladder = {"decode_rows": [32]}
    settings = {"mamba_block_size": 32, "compilation_config": ladder}
    with engine(folder, speculative_config=drafts, **settings) as llm:
        say(tokens=run(llm), again=run(llm), drafted=llm.stats().drafts.drafted)


def everything(built: jengine.LLM) -> None:
    """Everything that must work, one after the other in one engine."""
    with built as llm:
        assert set(llm.mesh.devices.flat) == set(jax.devices())
        first, again = run(llm), run(llm)
        health = llm.health(probe=True)
        memory = llm.call_workers("memory")
        stopped = llm.generate(PROMPTS[:2], SamplingParams(max_tokens=9, seed=1, temperature=1))
        updated = zeroed(llm)
        version = llm.update_params(updated)
        say(
            tokens=first,
            again=again,
            hits=llm.stats().prefix_hits,
            stopped=answers(stopped),
            ranks=sorted(worker.rank for worker in health),
            held=[worker.weights for worker in memory],
            version=version,
            zeroed=answers(llm.generate(PROMPTS[:1], SamplingParams(max_tokens=3, temperature=0))),
        )


def asleep(folder: Path, rank: int) -> None:
    """Every process gives its memory back, and wakes."""
    with engine(folder, enable_sleep_mode=True) as llm:
        first = run(llm)
        llm.sleep(1)
        held = [(worker.weights, worker.cache) for worker in llm.call_workers("memory")]
        assert llm.wake_up()
        again = run(llm)
        llm.sleep(2)
        dropped = not llm.wake_up()
        llm.reload_weights()
        say(tokens=first, held=held, again=again, dropped=dropped, awake=llm.wake_up(),
            reloaded=run(llm))  # fmt: skip


def offloading(folder: Path, rank: int) -> None:
    """Blocks that leave the devices for the hosts' memory, of which each process has a part."""
    offloaded(folder)


def offloading_stages(folder: Path, rank: int) -> None:
    """As above, from the stages of a pipeline."""
    offloaded(folder, pipeline_parallel_size=2)


def offloaded(folder: Path, **settings: Any) -> None:
    with engine(folder, num_gpu_blocks_override=18, kv_offloading_size=0.01, **settings) as llm:
        found = in_turn(llm, OFFLOADED + OFFLOADED)
        say(**found, together=answers(llm.generate(OFFLOADED, PARAMS[0])))


def producing(folder: Path, rank: int) -> None:
    """Blocks that go on to a folder, where each process stores its piece of them."""
    far(folder, "kv_producer")


def consuming(folder: Path, rank: int) -> None:
    """Blocks that earlier processes have stored."""
    far(folder, "kv_consumer")


def sharing_stages(folder: Path, rank: int) -> None:
    """Both, with the layers in two stages."""
    far(folder, "kv_both", pipeline_parallel_size=2)


def far(folder: Path, role: str, **settings: Any) -> None:
    config = {
        "kv_connector": "SharedStorageConnector", "kv_role": role,
        "kv_connector_extra_config": {"shared_storage_path": str(folder.parent / "blocks")},
    }  # fmt: skip
    with engine(folder, kv_transfer_config=config, **settings) as llm:
        say(begins=True)
        say(**in_turn(llm, OFFLOADED))


def own_connector(folder: Path, rank: int) -> None:
    """The connector of the example, twice: its objects are files, and every process has its own."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from tests.multihost import file_objects

    config = {
        "kv_connector": "FileConnector", "kv_connector_module_path": file_objects.__name__,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"store": {"folder": str(folder.parent / "objects")}},
    }  # fmt: skip
    turns = []
    for _ in range(2):
        with engine(folder, kv_transfer_config=config) as llm:
            turns.append(in_turn(llm, OFFLOADED))
    say(turns=turns)


def serving_pieces(folder: Path, rank: int) -> None:
    """Prompts are computed for others, who ask each process for its piece of the blocks."""
    asked = {"kv_transfer_params": {"do_remote_decode": True}}
    params = SamplingParams(temperature=0, max_tokens=1, extra_args=asked)
    with engine(folder, kv_transfer_config=over_tcp(folder, "kv_producer")) as llm:
        say(said=[llm.generate([one], params)[0].kv_transfer_params for one in OFFLOADED])
        while not (folder.parent / "done").exists():
            time.sleep(0.05)


def fetching_pieces(folder: Path, rank: int) -> None:
    """The prompts of the others, wherever these have said that their blocks are."""
    said = json.loads((folder.parent / "said.json").read_text())
    with engine(folder, kv_transfer_config=over_tcp(folder, "kv_consumer")) as llm:
        outputs = []
        for prompt, place in zip(OFFLOADED, said, strict=True):
            params = SamplingParams(**GREEDY, extra_args={"kv_transfer_params": place})
            outputs += llm.generate([prompt], params)
        say(tokens=answers(outputs), cached=[one.num_cached_tokens for one in outputs])


def over_tcp(folder: Path, role: str) -> dict[str, Any]:
    extra = {"secret": "a secret of both engines", "timeout_seconds": 10}
    port = int((folder.parent / "port").read_text())
    return {
        "kv_connector": "ZmqConnector", "kv_role": role, "kv_port": port,
        "kv_connector_extra_config": extra,
    }  # fmt: skip


def in_turn(llm: jengine.LLM, prompts: list[list[int]]) -> dict[str, Any]:
    """Answers of one request after the other, and how many tokens of each were cached."""
    outputs = [llm.generate([prompt], PARAMS[0])[0] for prompt in prompts]
    return {"tokens": answers(outputs), "cached": [one.num_cached_tokens for one in outputs]}


def zeroed(llm: jengine.LLM) -> dict[str, np.ndarray]:
    """Zeros for every parameter, as whole arrays on the host."""
    return {
        path: np.zeros(parameter.shape, parameter.dtype)
        for path, parameter in named_parameters(llm.engine.declared)
    }


def adapting(folder: Path, rank: int) -> None:
    """Adapters, which every process reads and brings to its devices."""
    settings = {**adapted.SETTINGS, "max_model_len": 256}
    with tiny_engine(folder, multihost=MULTIHOST, **settings) as llm:
        say(found=adapted.turns(llm, adapted.written_adapters(folder.parent)))


def encoding(folder: Path, rank: int) -> None:
    """What encoders read, images or a text: every process runs them, and the decoder over all."""
    encoded(folder)


def encoding_stages(folder: Path, rank: int) -> None:
    """As above, for a decoder in two stages of layers."""
    encoded(folder, pipeline_parallel_size=2)


def encoded(folder: Path, **settings: Any) -> None:
    prompts = encoder_prompts.of(folder.name)
    with tiny_engine(folder, max_model_len=48, multihost=MULTIHOST, **settings) as llm:
        say(found=answers(llm.generate(prompts, SamplingParams(**GREEDY))))


def ruled(folder: Path, rank: int) -> None:
    """Requests with grammars, of which the leader keeps the matchers."""
    with engine(folder, tokenizer=folder) as llm:
        say(texts=grammar_requests.texts(llm))


def differing(folder: Path, rank: int) -> None:
    """Differences are found and named everywhere, and the engine goes on."""
    with engine(folder) as llm:
        prompts = PROMPTS if rank == 0 else [*PROMPTS[:2], [9] * 60, PROMPTS[3]]
        other_prompts = refused(RequestError, lambda: llm.generate(prompts, PARAMS))
        fewer = refused(RequestError, lambda: llm.generate(PROMPTS[: 4 - rank], PARAMS[: 4 - rank]))
        params = zeroed(llm)
        if rank == 1:
            params["layers.1.mlp.down.weight"] += 1
        other_weights = refused(ConfigError, lambda: llm.update_params(params))
        if rank == 0:
            other_calls = refused(RequestError, lambda: llm.generate(PROMPTS, PARAMS))
        else:
            other_calls = refused(ConfigError, lambda: llm.update_params(zeroed(llm)))
        name = "memory" if rank == 0 else "programs"
        other_methods = refused(RequestError, lambda: llm.call_workers(name))
        say(
            other_methods=other_methods,
            other_prompts=other_prompts,
            fewer=fewer,
            other_weights=other_weights,
            other_calls=other_calls,
            version=llm.weights_version,
            tokens=run(llm),
        )


def at_start(folder: Path, rank: int) -> None:
    """Settings and weights that differ are found while the engine is built."""
    settings = refused(ConfigError, lambda: engine(folder, max_num_seqs=8 - rank))
    read = folder if rank == 0 else folder.parent / "other"
    say(settings=settings, weights=refused(ConfigError, lambda: engine(read)))


def joined(folder: Path, rank: int) -> None:
    """A program with a mesh and arrays of its own over all processes; both go on afterwards."""
    devices = np.array(jax.devices())
    mesh = Mesh(devices, ("fsdp",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("fsdp"))
    own = jax.make_array_from_callback(
        (devices.size, 4), split, lambda part: np.ones((devices.size, 4), np.float32)[part]
    )
    with engine(folder, mesh=mesh) as llm:
        first = run(llm)
        total = float(jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(own))
        version = llm.update_params(llm.engine.loaded.parameters())
        captured = llm.generate(
            PROMPTS[:1], SamplingParams(max_tokens=3, prompt_logprobs=1), capture=["norm"]
        )[0]
        assert captured.captured["norm"].shape[0] >= 1
        say(
            tokens=first,
            again=run(llm),
            total=total,
            version=version,
            captured=float(np.abs(captured.captured["norm"]).sum()),
        )
    alone = Mesh(np.array(jax.local_devices()[:1]), ("own",), axis_types=(AxisType.Auto,))
    with engine(folder, mesh=alone) as llm:  # an engine of each process alone
        say(alone=run(llm))


def streaming(folder: Path, rank: int) -> None:
    """Runs until something is done to it."""
    with engine(folder, variant="greedy") as llm:
        while True:
            for _ in llm.stream(PROMPTS, LONG):
                say(running=True)


def interrupted(folder: Path, rank: int) -> None:
    """Ctrl-C in one process ends the requests in all; the engine goes on."""
    with engine(folder) as llm:
        reasons: list[str | None] = []
        try:
            for output in llm.stream(PROMPTS, LONG):
                say(running=True)
                reasons += [output.outputs[0].finish_reason] if output.finished else []
        except KeyboardInterrupt:
            reasons.append("interrupt")
        say(reasons=sorted(map(str, reasons)), tokens=run(llm), running=llm.stats().running)


def idle_then_leaves(folder: Path, rank: int) -> None:
    """One process leaves; the others notice it at their next step."""
    llm = engine(folder)
    if rank == 1:
        llm.shutdown()
        return
    time.sleep(1)
    try:
        llm.generate(PROMPTS, PARAMS)
    except jengine.errors.EngineDead as error:
        say(error=str(error))


SCENARIOS = {
    function.__name__: function
    for function in (
        same,
        staged,
        prefill_context,
        ruled,
        adapting,
        encoding,
        encoding_stages,
        drafting,
        device_drafting,
        offloading,
        offloading_stages,
        producing,
        consuming,
        sharing_stages,
        own_connector,
        serving_pieces,
        fetching_pieces,
        suffixes,
        headed,
        differing,
        at_start,
        joined,
        asleep,
        streaming,
        interrupted,
        idle_then_leaves,
    )
}


def main() -> None:
    scenario, rank, processes, port, folder = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(rank))
    SCENARIOS[scenario](Path(folder), int(rank))


if __name__ == "__main__":
    main()
