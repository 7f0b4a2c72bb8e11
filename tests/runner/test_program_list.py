"""How many programs an engine compiles, and in which of them a step runs."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.device_defaults import DEVICE_DEFAULTS, DeviceDefaults
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_sizes import runner_config
from jengine.capacity.device_layout import DeviceLayout
from jengine.capacity.device_memory import Memory
from jengine.config import ModelConfig
from jengine.errors import ConfigError, UnexpectedCompile
from jengine.models.reading.published import PUBLISHED
from jengine.models.registry import model_config
from jengine.runner.programs.compiler_options import CompilerChoices, capability_of
from jengine.runner.programs.ledger import CompileLedger, LedgerEntry
from jengine.runner.programs.programs import Programs
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.variants.buckets import Bucket, Ladders, Slots
from jengine.runner.variants.features import Features, variants
from jengine.runner.variants.parts import Part
from jengine.runner.variants.program_list import Key, ProgramList
from jengine.runner.variants.tap_sets import TapSet
from jengine.sampling.row_parameters import row_bytes
from tests.models.tiny_models import FAMILIES, tiny_settings

LARGE = model_config(PUBLISHED["llama-8b"])
SMALL = model_config({  # 135M parameters
    **PUBLISHED["llama-8b"], "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152,
    "max_position_embeddings": 8192, "tie_word_embeddings": True,
})  # fmt: skip
KNOWN = variants(20, "raw_logprobs")
OWN_IDS = replace(KNOWN["full"], sampling=replace(KNOWN["full"].sampling, own_ids=True))
LADDERS = Ladders((8, 32, 128, 256), (256, 512, 1024, 2048, 4096, 8192), (4,))


def defaults(
    device: str, *, model: ModelConfig = LARGE, penalises: bool = False, **settings: Any
) -> RunnerConfig:
    """The settings of an engine for a model on such a device. Compiles nothing."""
    args, usual = EngineArgs("any", **settings), DEVICE_DEFAULTS[device]
    schedule = schedule_config(args.groups, model, usual)
    return runner_config(args.groups, model, schedule, defaults=usual, penalises=penalises)


@pytest.mark.parametrize(
    ("device", "settings", "forwards", "heads"),
    [
        ("gpu", {}, 21, 16),
        ("gpu", {"penalises": True}, 21, 11),
        ("gpu", {"max_num_seqs": 1024}, 31, 19),
        ("gpu", {"max_num_seqs": 4}, 7, 7),
        ("gpu", {"strict": True}, 21, 20),
        ("cpu", {}, 7, 12),
        ("cpu", {"model": SMALL}, 7, 12),
        ("cpu", {"penalises": True}, 7, 7),
    ],
)
def test_an_engine_compiles_few_programs(
    device: str, settings: dict[str, Any], forwards: int, heads: int
) -> None:
    wanted = defaults(device, **settings).programs
    parts = [tier.part for _, tier in wanted.all]
    assert (parts.count(Part.FORWARD), len(parts)) == (forwards, forwards + heads)
    assert len(set(wanted.all)) == len(wanted.all)
    for first in (wanted.first, wanted.largest):
        assert {*first, *wanted.later} == set(wanted.all) or first == wanted.largest
        assert [tier.part for _, tier in first] == [Part.FORWARD, Part.SAMPLE]
    assert isinstance(wanted.later[0][0], Slots)


@pytest.mark.parametrize(("device", "rows", "more"), [("cpu", 8, 2), ("gpu", 256, 4)])
def test_drafts_add_few_programs(device: str, rows: int, more: int) -> None:
    """Decodes without drafts have programs of their own, prompts have not."""
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    programs = defaults(device, speculative_config=ngram).programs
    plain = [bucket for bucket, tier in programs.models if not tier.drafts]
    assert len(plain) == more
    assert {bucket.prefill_tokens for bucket in plain} == {0}
    assert max(bucket.decode_rows for bucket in plain) == rows
    assert programs.first[0][1].drafts


def test_drafts_are_programs_of_their_own() -> None:
    """For each size that reads drafts, with and without noise; of sampling they know no more."""
    shapes = replace(defaults("cpu").shapes, makes_drafts=True, most_drafts=3)
    tiers = tuple(variants(20, "raw_logprobs", drafts=True).values())
    programs = ProgramList(LADDERS, tiers, shapes)
    read = [bucket for bucket, tier in programs.models if tier.drafts]
    assert len(programs.next_drafts) == 2 * len(read)
    assert {tier.sampling.random for _, tier in programs.next_drafts} == {False, True}
    for first in (programs.first, programs.largest):
        assert [tier.part for _, tier in first] == [Part.FORWARD, Part.DRAFT, Part.SAMPLE]


def test_drafts_with_recurrent_layers_are_sampled_with_the_model() -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    settings = {**tiny_settings("qwen3_next"), "architectures": [FAMILIES["qwen3_next"]]}
    config = model_config(settings)
    for drafts, part in ((None, Part.FORWARD), (ngram, Part.STEP)):
        args, usual = EngineArgs("any", speculative_config=drafts), DEVICE_DEFAULTS["cpu"]
        schedule = schedule_config(args.groups, config, usual)
        programs = runner_config(args.groups, config, schedule, defaults=usual).programs
        assert {tier.part for _, tier in programs.models} == {part}
        assert programs.largest[0][1].part is part


def test_tiles_of_prompts_fill_a_program_of_attention() -> None:
    """128 queries of one KV head on GPUs, in short tiles where the kernel joins them; the CPU's
    kernels take tiles of any length."""
    few, gpu = model_config(PUBLISHED["qwen3-0.6b"]), DEVICE_DEFAULTS["gpu"]
    alone = dataclasses.replace(few.layers[0].mixer, num_kv_heads=few.layers[0].mixer.num_heads)
    first = dataclasses.replace(few.layers[0], mixer=alone)
    args = EngineArgs("any")
    for layers, tile in ((LARGE.layers, 32), (few.layers, 64), ((first, *few.layers), 128)):
        config = dataclasses.replace(few, layers=layers)
        alone = schedule_config(args.groups, config, gpu, stages=2)
        assert (alone.prefill_tile, alone.joined_tiles) == (tile, 1)
        plain = schedule_config(EngineArgs("any", attention_backend="xla").groups, config, gpu)
        assert (plain.prefill_tile, plain.joined_tiles) == (tile, 1)
        joined = schedule_config(args.groups, config, gpu)
        assert (joined.prefill_tile, joined.joined_tiles) == (8, tile // 8)
        assert schedule_config(args.groups, config, DEVICE_DEFAULTS["cpu"]).prefill_tile == 32
        exact = EngineArgs("any", deterministic=True, attention_backend="xla")
        assert schedule_config(exact.groups, config, gpu).prefill_tile == 1


def test_decodes_read_together_on_gpus_unless_that_is_turned_off() -> None:
    gpu = DEVICE_DEFAULTS["gpu"]

    def settings(device: DeviceDefaults = gpu, **given: Any) -> tuple[int, bool]:
        args = EngineArgs("any", **given)
        schedule = schedule_config(args.groups, LARGE, device)
        shapes = runner_config(args.groups, LARGE, schedule, defaults=device).shapes
        return schedule.shared_blocks, shapes.reads_together

    assert settings() == (16, True), "256 tokens"
    assert settings(block_size=48) == (6, True)
    for off in ("deterministic", "disable_cascade_attn"):
        assert settings(**{off: True}) == (0, False)
    assert settings(attention_backend="xla") == (0, False)
    assert settings(DEVICE_DEFAULTS["cpu"]) == (0, False)


def test_collectives_are_captured_where_that_is_asked_for() -> None:
    assert not defaults("gpu").choices.capture_collectives
    asked = {"compilation_config": {"capture_collectives": True}}
    assert defaults("gpu", **asked).choices.capture_collectives
    device = SimpleNamespace(platform="gpu", compute_capability="9.0")
    usual, captured = (CompilerChoices(chosen).options(device, 8) for chosen in (False, True))
    assert usual is not None and captured is not None
    assert {*captured} - {*usual} == {"xla_gpu_enable_command_buffer"}
    assert captured["xla_gpu_enable_command_buffer"].endswith(",COLLECTIVES")
    assert CompilerChoices(True).options(SimpleNamespace(platform="cpu"), 8) is None
    # Parameters that come from the host, all of a layer at once.
    arriving = CompilerChoices(arriving=6).options(device, 8)
    assert arriving == {**usual, "xla_gpu_experimental_parallel_async_compute_limit": 6}
    assert usual["xla_gpu_graph_min_graph_size"] == 2
    long = defaults("gpu", compilation_config={"short_graphs": False}).choices.options(device, 8)
    assert long is not None
    assert {*usual} - {*long} == {"xla_gpu_graph_min_graph_size"}
    with pytest.raises(ConfigError, match="capture_collectives"):
        EngineArgs("any", compilation_config={"capture_collectives": "yes"})
    with pytest.raises(ConfigError, match="short_graphs"):
        EngineArgs("any", compilation_config={"short_graphs": 5})


def test_this_xla_knows_the_options_of_gpus() -> None:
    """A profiler sees the graphs that are served, since XLA is told to launch them under one."""
    options = CompilerChoices().options(SimpleNamespace(platform="gpu"), 8)
    assert options is not None and options["xla_enable_command_buffers_during_profiling"]
    jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), "int32")).compile(options)


def test_matmuls_run_in_the_library_that_the_table_names() -> None:
    device = SimpleNamespace(platform="gpu", compute_capability="9.0")

    def triton(matmuls: str, tokens: int) -> bool:
        options = defaults("gpu", compilation_config={"matmuls": matmuls}).choices
        return (options.options(device, tokens) or {}).get("xla_gpu_enable_triton_gemm", True)

    assert [triton("auto", tokens) for tokens in (8, 32, 64, 8448)] == [True, True, False, False]
    assert [triton("xla", 64), triton("cublaslt", 8)] == [True, False]
    assert capability_of(device) == 90 and capability_of(object()) == 0
    with pytest.raises(ConfigError, match=r"matmuls.*'cublaslt'"):
        EngineArgs("any", compilation_config={"matmuls": "cublas"})


WHOLE = {name: KNOWN[name].of(Part.STEP) for name in ("greedy", "sampled", "adjusted", "full")}


def whole(*names: str) -> ProgramList:
    """The programs of an engine whose model samples too."""
    shapes = replace(defaults("gpu").shapes, chained=False)
    return ProgramList(LADDERS, tuple(KNOWN[name] for name in names), shapes)


def counted(programs: ProgramList) -> dict[str, int]:
    tiers = [tier for _, tier in programs.models]
    return {name: tiers.count(tier) for name, tier in WHOLE.items() if tier in tiers}


def test_rare_variants_have_fewer_buckets() -> None:
    assert counted(whole(*KNOWN)) == {"greedy": 13, "sampled": 13, "adjusted": 4, "full": 4}
    assert counted(whole("full", "scored")) == {"full": 13}, "the common one, if it is alone"


def programs_of(wanted: ProgramList) -> Programs:
    """Programs of which none is compiled."""
    compiler: Any = None
    return Programs(
        compiler, list(KNOWN.values()), CompileLedger(), strict=False, planned=wanted.all
    )


def chains_of(config: RunnerConfig) -> Programs:
    """Programs of an engine whose steps are chains; none is compiled, and none can be."""
    compiler: Any = SimpleNamespace(shapes=config.shapes, splits=False)
    tiers, wanted = list(config.tiers), config.programs.all
    return Programs(compiler, tiers, CompileLedger(), strict=False, planned=wanted)


def keep(programs: Programs, *keys: Key) -> None:
    for bucket, features in keys:
        programs.keep("compiled", LedgerEntry(bucket, features, 0.0, 0, 0))


def test_a_rare_step_is_rounded_up_to_a_bucket_that_has_its_variant() -> None:
    programs = programs_of(whole("sampled", "adjusted", "full"))
    decode, mixed = Bucket(8, 0, 4), Bucket(8, 256, 4)
    assert programs.bucket_for(decode, WHOLE["greedy"]) == decode
    assert programs.bucket_for(mixed, WHOLE["sampled"]) == mixed
    assert programs.bucket_for(decode, WHOLE["full"]) == Bucket(32, 0, 4)
    assert programs.bucket_for(Bucket(128, 0, 4), WHOLE["full"]) == Bucket(256, 0, 4)
    assert programs.bucket_for(mixed, WHOLE["full"]) == Bucket(256, 1024, 4)
    # What no planned program can do is compiled in the step's own bucket.
    tapped = Features(taps=(TapSet(1, ("layers.0.out",), ()),))
    assert programs.bucket_for(decode, tapped) == decode


def test_prompts_with_images_find_planned_programs() -> None:
    plain = whole("greedy", "sampled", "full")
    wanted = replace(plain, takes_images=True)
    added = wanted.models[len(plain.models) :]
    assert wanted.models[: len(plain.models)] == plain.models and wanted.first == plain.first
    assert {bucket.prefill_tokens > 0 for bucket, _ in added} == {True}
    programs, mixed = programs_of(wanted), Bucket(8, 256, 4)
    keep(programs, *wanted.all)
    programs.strict = True
    programs.end_warm_up()
    for name in ("greedy", "sampled", "full"):
        needed = replace(WHOLE[name], embeds=True)
        bucket = programs.bucket_for(mixed, needed)
        entry = programs.find(bucket, needed)[1]
        assert entry.features.embeds and entry.features.covers(needed)
    with pytest.raises(UnexpectedCompile):
        programs.find(Bucket(9, 9, 4), replace(WHOLE["full"], embeds=True))


@pytest.mark.parametrize("settings", [{}, {"strict": True}, {"penalises": True}])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_step_finds_planned_programs(device: str, settings: dict[str, Any]) -> None:
    config = defaults(device, **settings)
    programs = chains_of(config)
    keep(programs, *config.programs.all)
    for bucket in config.ladders.buckets():
        for needed in [*KNOWN.values(), OWN_IDS]:
            chain = programs.chain(bucket, needed)
            assert chain.bucket == bucket
            for part, found in chain.parts.items():
                assert found.entry.features.covers(needed.of(part))
    assert len(programs.ledger.entries) == len(config.programs.all), "nothing was compiled"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_smallest_that_is_compiled_stands_in_for_one_that_is_to_come(device: str) -> None:
    """At every moment of warm-up each step that finds its heads anywhere runs at once."""
    config = defaults(device)
    wanted, programs = config.programs, chains_of(config)
    keep(programs, *wanted.first)
    programs.expect_later(wanted.later)
    decode, largest = config.ladders.decode_rows, config.ladders.largest
    small = Bucket(decode[0], 0, largest.pages)
    assert programs.chain(small, KNOWN["sampled"]).bucket == largest
    forward = KNOWN["greedy"].of(Part.FORWARD)
    assert programs.ledger.asked_for((small, forward)) == 1
    ready = set[str]()
    for key in wanted.later:
        keep(programs, key)
        if key in wanted.largest:
            ready |= {"adjusted", "full"}
        for name in ("greedy", "sampled", *ready):
            chain = programs.chain(small, KNOWN[name])
            assert set(chain.parts) == {Part.FORWARD, Part.SAMPLE}
    assert programs.chain(small, KNOWN["full"]).bucket == small
    assert len(programs.ledger.entries) == len(wanted.all), "nothing was compiled"


def test_the_samplers_state_is_a_pool_of_limited_size() -> None:
    usual, most = DEVICE_DEFAULTS["gpu"], 1024
    args = EngineArgs("any", max_num_seqs=most)
    assert schedule_config(args.groups, LARGE, usual).sampler_rows == 256
    assert schedule_config(args.groups, LARGE, usual, penalises=True).sampler_rows == most
    assert (
        schedule_config(EngineArgs("any").groups, LARGE, DEVICE_DEFAULTS["cpu"]).sampler_rows == 8
    )
    for given, expected in ((700, 700), (5000, most)):
        args = EngineArgs("any", max_num_seqs=most, compilation_config={"max_adjusted_seqs": given})
        assert schedule_config(args.groups, LARGE, usual).sampler_rows == expected
    with pytest.raises(ConfigError, match=r"max_adjusted_seqs'\]='x': expected a positive"):
        args = EngineArgs("any", compilation_config={"max_adjusted_seqs": "x"})
        schedule_config(args.groups, LARGE, usual)


def test_bytes_of_the_samplers_state() -> None:
    schedule = schedule_config(
        EngineArgs("any", max_num_seqs=1024).groups, LARGE, DEVICE_DEFAULTS["gpu"]
    )
    memory = Memory(LARGE, DeviceLayout(), schedule, 16, usable=80 * 10**9)
    # 1,024 rows of 128,256 tokens of vocabulary and 131,072 tokens of context took 1.6 GB.
    pool, tables = 256 * row_bytes(128_256, 131_072), 4 * 1024 * 131_072 // 16
    prompts = 8192 * LARGE.hidden_size * 4  # hidden states of the prompt tokens of a step
    row_state = memory.row_state - prompts
    assert pool < 272_000_000 and pool < row_state < pool + tables + 20_000
