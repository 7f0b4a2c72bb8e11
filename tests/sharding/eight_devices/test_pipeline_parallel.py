"""A model in stages of layers answers as it does on one device, each stage holding its own part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

import jengine
from jengine import SamplingParams
from jengine.errors import ConfigError, UnexpectedCompile, UnsupportedFeature
from jengine.plan import Wanted
from jengine.runner.step.leaves import first_layers
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.parts import Part
from jengine.weights.safetensors_io import load_model
from tests.api.engines import answers, tiny_engine
from tests.models.tiny_models import write_tiny, write_tiny_native
from tests.sharding.eight_devices.memory import shares_memory
from tests.sharding.eight_devices.same_answers import PROMPTS, run, same_in_every_way
from tests.sharding.eight_devices.test_tensor_parallel import FAMILIES

# Layers over stages: even, and with slots that stages leave out.
LAYERS = 3
LAYER_TYPES = [*["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 2]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama whose layers do not divide by the stages."""
    return write_tiny_native(
        tmp_path_factory.mktemp("uneven"),
        "llama",
        num_hidden_layers=LAYERS,
        max_position_embeddings=1024,
        vocab_size=128,
    )


@pytest.fixture(scope="module")
def on_one(uneven: Path) -> list[Any]:
    with staged(uneven, 1) as llm:
        return run(llm)


@pytest.fixture(scope="module")
def two(uneven: Path) -> Iterator[jengine.LLM]:
    """Two stages of one device each."""
    with staged(uneven, 2) as llm:
        yield llm


def staged(folder: Path, stages: int, tensor: int = 1, **settings: Any) -> jengine.LLM:
    sizes = {"pipeline_parallel_size": stages, "tensor_parallel_size": tensor}
    return tiny_engine(folder, **sizes, **{"max_logprobs": 2, **settings})


@pytest.mark.slow
def test_two_stages_of_two_devices(uneven: Path, on_one: list[Any]) -> None:
    with staged(uneven, 2, 2, strict=True, enforce_eager=False) as llm:
        assert dict(llm.mesh.shape) == {"pp": 2, "tp": 2, "tp_replicas": 1}
        same_in_every_way(llm, on_one)
        assert llm.stats().compiles_after_warm_up == 0


def test_two_stages(two: jengine.LLM, on_one: list[Any]) -> None:
    same_in_every_way(two, on_one)


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "tensor"), [(3, 1), (2, 4)])
def test_same_tokens_in_any_split(
    uneven: Path, on_one: list[Any], stages: int, tensor: int
) -> None:
    with staged(uneven, stages, tensor) as llm:
        same_in_every_way(llm, on_one)


@pytest.mark.slow
def test_replicas_of_stages(uneven: Path, on_one: list[Any]) -> None:
    with staged(uneven, 2, data_parallel_size=2) as llm:
        assert dict(llm.mesh.shape) == {"dp": 2, "pp": 2, "tp": 1, "tp_replicas": 1}
        assert run(llm) == on_one
        mine = dict(llm.engine.loaded.parameters())
        assert llm.update_params(flipped(mine)) == 1
        assert run(llm) != on_one
        assert llm.update_params({name: np.asarray(a) for name, a in mine.items()}) == 2
        assert run(llm) == on_one
        devices = {name: len(one.device_set) for name, one in llm.param_shardings.items()}
    assert (devices["layers.0.mlp.down.weight"], devices["embed.weight"]) == (2, 4)


@pytest.mark.slow
def test_four_stages(tmp_path: Path) -> None:
    """Two layers short of eight, so stages leave slots out; small plans are moved to the
    bucket of the large ones that are in the stages with them."""
    folder = write_tiny_native(tmp_path, "llama", num_hidden_layers=6)
    ladders = {"decode_rows": [2, 8], "prefill_tokens": [32, 128], "variants": ["full"]}
    settings: dict[str, Any] = {"max_model_len": 256, "max_num_batched_tokens": 128}
    settings["compilation_config"] = ladders
    with staged(folder, 1, **settings) as llm:
        expected = run(llm)
    with staged(folder, 4, **settings) as llm:
        assert run(llm) == expected
        sizes = [size for size, _ in llm.ledger.entries if isinstance(size, Bucket)]
        assert set(map(str, sizes)) == {"8+128x16", "2+0x16"}


# Layers of two kinds, of which the stages have other numbers.
UNLIKE: list[tuple[str, dict[str, Any]]] = [
    ("gemma3", {"num_hidden_layers": 5, "layer_types": LAYER_TYPES}),
    # The second stage has no layer without experts to borrow from.
    ("qwen3_moe", {"num_hidden_layers": 4, "mlp_only_layers": [0]}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layers"),
    [
        *((family, {"num_hidden_layers": 3}) for family in FAMILIES
          if family not in ("gemma3", "gemma4")),
        *UNLIKE,
    ],
)  # fmt: skip
def test_every_family(tmp_path: Path, family: str, layers: dict[str, Any]) -> None:
    folder = write_tiny_native(tmp_path, family, **layers)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    found = []
    for stages in (1, 2):
        with staged(folder, stages, variant="greedy", max_model_len=256) as llm:
            found.append(answers(llm.generate(PROMPTS, params)))
    assert found[0] == found[1]


def test_slots_that_are_left_out_change_nothing(tmp_path: Path) -> None:
    """Also where a layer does more than add to its input, as here, which multiplies at its end.
    The second stage leaves out the slot between its two layers."""
    kinds = ["full_attention", "sliding_attention", *["full_attention"] * 3]
    folder = write_tiny(
        tmp_path, "gemma4", num_hidden_layers=5, num_kv_shared_layers=0,
        hidden_size_per_layer_input=0, layer_types=kinds,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    found = []
    for stages in (1, 2):
        with staged(folder, stages, variant="greedy", max_model_len=256) as llm:
            found.append(answers(llm.generate(PROMPTS, params)))
    assert found[0] == found[1]


def test_layers_that_read_earlier_ones_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "gemma4")
    with pytest.raises(UnsupportedFeature, match="its layers read what is made or kept in earlier"):
        staged(folder, 2, max_model_len=256)


def test_strict_mode_refuses_before_a_plan_enters(uneven: Path) -> None:
    """And those on their way have come to their end, so the engine goes on."""
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    drawn = SamplingParams(temperature=1.0, seed=1, max_tokens=6, ignore_eos=True)
    with staged(
        uneven, 2, variant="greedy", max_model_len=256, strict=True, enforce_eager=False
    ) as llm:
        expected = answers(llm.generate(PROMPTS, greedy))
        with pytest.raises(UnexpectedCompile):
            llm.generate(PROMPTS, [greedy, greedy, greedy, greedy, drawn])
        assert llm.stats().running == 0
        assert answers(llm.generate(PROMPTS, greedy)) == expected


@pytest.mark.parametrize("prefill", [0, pytest.param(256, marks=pytest.mark.slow)])
def test_what_devices_exchange(uneven: Path, prefill: int) -> None:
    """Within a stage two sums a layer; between stages one hand-over, what leaves, and the ends."""
    with staged(uneven, 2, 2) as llm:
        loaded = llm.engine.loaded
        bucket = next(b for b in loaded.ladders.buckets() if b.prefill_tokens == prefill)
        forward = loaded.programs.tiers[0].of(Part.FORWARD)
        compiled, _ = loaded.programs.compiler.compile(bucket, forward)
        slots = llm.engine.places.layout.num_slots
        hidden, caches = llm.engine.model.hidden_size, loaded.state.caches
    text = compiled.as_text()
    for kind in ("all-gather", "all-to-all", "reduce-scatter"):
        assert f" {kind}(" not in text
    assert len(re.findall(r" collective-permute(?:-start)?\(", text)) == 1
    sums = re.findall(r"= [a-z0-9]+\[([0-9,]*)\]\S* all-reduce\(", text)
    large = [shape for shape in sums if shape.endswith(f",{hidden}")]
    assert len(large) == 2 * slots + 2  # the embedding, and what is sampled
    memory = compiled.memory_analysis()
    own = sum(cache.addressable_shards[0].data.nbytes for cache in caches)
    assert memory.alias_size_in_bytes >= own
    cache_shape = ",".join(map(str, caches[0].addressable_shards[0].data.shape))
    assert f"[{cache_shape}]" in text
    assert not re.search(rf"\[{cache_shape}\]\S* copy\(", text)


def test_each_stage_holds_its_layers_only(two: jengine.LLM) -> None:
    shardings, parameters = two.param_shardings, two.engine.loaded.parameters()
    caches = two.engine.loaded.state.caches
    assert set(shardings) == set(parameters)
    memory = str(two.memory())
    stages = llm_devices(shardings)
    assert stages["layers.0.mlp.down.weight"] == stages["layers.1.mlp.down.weight"] == {0}
    assert stages["layers.2.attention.qkv.weight"] == {1}
    assert stages["embed.weight"] == stages["norm.weight"] == {0, 1}
    assert parameters["embed.weight"].addressable_shards[0].data.shape[0] == 128 // 2
    assert caches[0].shape[0] == 4 and caches[0].addressable_shards[0].data.shape[0] == 2
    assert "on each of 2 devices" in memory


def llm_devices(shardings: dict[str, jax.sharding.Sharding]) -> dict[str, set[int]]:
    return {
        name: {device.id for device in sharding.device_set} for name, sharding in shardings.items()
    }


def test_parameters_come_and_go_without_a_copy(
    two: jengine.LLM, on_one: list[Any], tmp_path: Path
) -> None:
    mine = dict(two.engine.loaded.parameters())
    version = two.weights_version
    assert two.update_params(flipped(mine)) == version + 1
    assert run(two) != on_one
    assert two.update_params(mine) == version + 2
    copied = two.engine.order.copied
    for name, array in two.engine.loaded.parameters().items():
        assert np.array_equal(mine[name], array), name
        assert shares_memory(mine[name], array) or name in copied, name
    assert run(two) == on_one
    two.save(tmp_path / "saved")
    with staged(tmp_path / "saved", 1) as one:
        assert run(one) == on_one


def flipped(parameters: dict[str, jax.Array]) -> dict[str, Any]:
    """Other parameters of the same shapes."""
    return {name: np.flip(np.asarray(array), -1) for name, array in parameters.items()}


@pytest.mark.slow
def test_orbax_to_and_from_stages(uneven: Path, on_one: list[Any], tmp_path: Path) -> None:
    with staged(uneven, 2, 2) as llm:
        llm.save(tmp_path / "saved", format="orbax")
    with staged(tmp_path / "saved", 3, load_format="orbax") as llm:
        assert run(llm) == on_one


@pytest.mark.slow
def test_a_mesh_of_ones_own(uneven: Path, on_one: list[Any]) -> None:
    """Its axis "pp" may stand anywhere."""
    devices = np.array(jax.devices()[2:6]).reshape(2, 2)
    with tiny_engine(uneven, mesh=Mesh(devices, ("model", "pp"))) as llm:
        assert llm.mesh.devices[:, :, 0].tolist() == devices.T.tolist()
        assert run(llm) == on_one


@pytest.mark.slow
def test_a_live_module(uneven: Path, on_one: list[Any]) -> None:
    with tiny_engine(load_model(uneven), pipeline_parallel_size=2) as llm:
        assert run(llm) == on_one


def test_only_the_shared_decoder_runs_in_stages() -> None:
    with pytest.raises(UnsupportedFeature, match="pipeline_parallel_size with a model that is a L"):
        first_layers(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), 1)


def test_new_parameters_meet_no_plan_halfway(two: jengine.LLM) -> None:
    """What is in the stages goes the rest of its way with the old ones."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    core: Any = two.engine.in_process.core
    expected = [answer[0] for answer in answers(two.generate(PROMPTS[1:3], params))]
    mine, tokens, sampled = dict(two.engine.loaded.parameters()), {}, {}
    for output in two.stream(PROMPTS[1:3], params):
        tokens[output.request_id] = list(output.outputs[0].token_ids)
        if not sampled and len(tokens) == 2 and min(map(len, tokens.values())) == 3:
            ((plan, pending),) = core.in_flight  # the other request, in the second stage
            assert [entry.wanted for entry in plan.entries] == [Wanted.TOKENS]
            assert not pending.has_left
            sampled = {name: len(found) for name, found in tokens.items()}
            sampled[next(name for name in tokens if name != output.request_id)] += 1
            two.update_params(flipped(mine), on_inflight="continue")
    two.update_params(mine)
    for (name, found), old in zip(tokens.items(), expected, strict=True):
        assert found[: sampled[name]] == old[: sampled[name]]
        assert found != old


def test_aborted_in_the_stages(two: jengine.LLM, on_one: list[Any]) -> None:
    """Rows and blocks of requests that end early go to others while stages still run them."""
    params = SamplingParams(max_tokens=40, ignore_eos=True, logit_bias={3: 1.5})
    for count in (1, 3, 6):
        stream = two.stream(PROMPTS, params)
        for _ in range(count):
            next(stream)
        stream.close()
        assert run(two) == on_one


def test_a_row_changes_hands_before_its_last_token_is_sampled(two: jengine.LLM) -> None:
    """Penalties of the new request do not count the token that the old one still gets."""
    either = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
    mine = SamplingParams(**either, allowed_token_ids=[3, 4], frequency_penalty=2.0)
    theirs = SamplingParams(**either, allowed_token_ids=[3], frequency_penalty=0.1)
    core: Any = two.engine.in_process.core
    expected = answers(two.generate(PROMPTS[1], mine))
    stream = two.stream(PROMPTS[1:3], theirs)
    for _ in stream:
        if [[entry.row for entry in plan.entries] for plan, _ in core.in_flight] == [[0]]:
            break
    assert not core.in_flight[0][1].has_left
    stream.close()
    assert answers(two.generate(PROMPTS[1], mine)) == expected


def test_prompts_are_scored(uneven: Path, two: jengine.LLM) -> None:
    rows = [prompt for prompt in PROMPTS if len(prompt) > 1]
    with staged(uneven, 1) as one:
        expected, found = (engine.compute_logprobs(rows, top_k=2) for engine in (one, two))
    for theirs, ours in zip(expected, found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.slow
def test_deterministic(uneven: Path) -> None:
    """One program: the same bits alone and together."""
    params = SamplingParams(max_tokens=6, ignore_eos=True, flat_logprobs=True, logprobs=1, seed=3)
    sizes = {"pipeline_parallel_size": 2, "max_model_len": 256, "max_num_seqs": 4}
    with jengine.LLM(uneven, skip_tokenizer_init=True, deterministic=True, **sizes) as llm:
        together = [output.outputs[0] for output in llm.generate(PROMPTS, params)]
        alone = [llm.generate([prompt], params)[0].outputs[0] for prompt in PROMPTS]
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.logprobs_array == other.logprobs_array).all()


def test_stages_are_busy(two: jengine.LLM) -> None:
    """Decoding rows are shared out among the plans that run beside each other."""
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    before = steps_of(two)
    two.generate([PROMPTS[1][:8]] * 8, params)
    # 29 tokens a row in halves that take turns, behind a prompt that all share.
    assert steps_of(two) - before <= 2 * 29 + 4


def steps_of(llm: jengine.LLM) -> int:
    entries = llm.ledger.entries.values()
    return sum(entry.hits for entry in entries if entry.features.part is Part.FORWARD)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pipeline_parallel_size": 4}, "pipeline_parallel_size=4: expected 1 to 3, the number of"),
        ({"pipeline_parallel_size": 0}, "expected a positive integer"),
        (
            {"pipeline_parallel_size": 3, "tensor_parallel_size": 3},
            "tensor_parallel_size=3 x pipeline_parallel_size=3: expected 1 to 8",
        ),
        ({"mesh": ("pp", "a"), "pipeline_parallel_size": 4}, "pipeline_parallel_size=4 and a mesh"),
        ({"mesh": ("pp", "a"), "tensor_parallel_size": 1}, "tensor_parallel_size=1 and a mesh"),
    ],
)
def test_bad_input(uneven: Path, settings: dict[str, Any], message: str) -> None:
    if "mesh" in settings:
        devices = np.array(jax.devices()[:4]).reshape(2, 2)
        settings = {**settings, "mesh": Mesh(devices, settings["mesh"])}
    with pytest.raises(ConfigError, match=message):
        tiny_engine(uneven, **settings)


def test_what_stages_cannot_do_yet(two: jengine.LLM) -> None:
    with pytest.raises(UnsupportedFeature, match="capture with pipeline_parallel_size=2"):
        two.generate([PROMPTS[0]], capture="norm")
    with pytest.raises(UnsupportedFeature, match="intervene with pipeline_parallel_size=2"):
        two.generate([PROMPTS[0]], intervene={"norm": lambda x: x})
