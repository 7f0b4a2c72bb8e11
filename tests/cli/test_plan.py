"""`jengine plan`: bytes and times against arithmetic done by hand, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jengine.capacity.device_layout import checked_layout
from jengine.errors import ConfigError
from jengine.models.reading.published import PUBLISHED
from jengine.models.registry import model_config
from tests.cli.fake_llm import FakeLLM, Result, run

ROOT = Path(__file__).parent.parent.parent
LLAMA_8B_PARAMETERS = 8_030_261_248  # as its makers count them


def plan(*words: str) -> dict[str, Any]:
    return json.loads(planned(*words, "--json").out)


def planned(*words: str) -> Result:
    return run(FakeLLM(), "plan", *words)


def test_one_device_by_hand() -> None:
    found = plan("llama-8b", "--batch", "32", "--context", "1000")
    sizes = found["bytes_a_device"]
    assert sizes["weights"] == 2 * LLAMA_8B_PARAMETERS
    assert sizes["cache_token"] == 2 * 32 * 8 * 128 * 2  # keys and values, layers, heads, width
    assert sizes["usable"] == int(0.92 * 141e9)
    assert sum(sizes[k] for k in ("weights", "row_state", "scratch", "cache")) == sizes["usable"]
    decode = found["decode"]
    embedding = 2 * 128_256 * 4096  # of which a step reads a few rows only
    assert decode["weights_read"] == sizes["weights"] - embedding
    assert decode["cache_read"] == 32 * 1000 * sizes["cache_token"]
    read = decode["weights_read"] + decode["cache_read"]
    assert decode["floor"] == pytest.approx(read / 4.8e12)
    assert decode["expected"] == pytest.approx(read / (0.9 * 4.8e12) + 32 * 9.7 * 1e-6)
    assert found["decode_tokens_a_second"] == pytest.approx(32 / decode["expected"])
    # Two operations a weight; the attention of a token in the middle of its prompt beside it.
    weights = LLAMA_8B_PARAMETERS - 2 * 128_256 * 4096 - 65 * 4096  # no embedding, head or norms
    operations = 8192 * (2 * weights + 32 * 4 * 4096 * 500)
    assert found["prefill"]["operations"] == pytest.approx(operations, rel=1e-4)
    assert not found["prefill"]["memory_bound"]


def test_weights_and_cache_in_few_bits() -> None:
    plain = plan("llama-8b", "--batch", "32", "--context", "1000")
    few = plan(
        "llama-8b", "--batch", "32", "--context", "1000",
        "--quantization", "int4", "--kv-cache-dtype", "fp8",
    )  # fmt: skip
    rounded = LLAMA_8B_PARAMETERS - 2 * 128_256 * 4096 - 65 * 4096  # no embedding, head or norms
    scales = 4 * rounded / 32  # a scale and a zero for each group
    smaller = 2 * rounded - rounded / 2 - scales
    before, after = (one["bytes_a_device"] for one in (plain, few))
    assert before["weights"] - after["weights"] == smaller
    assert after["cache_token"] == 2 * 32 * 8 * (128 + 2)  # a byte each, and a scale for each head
    assert few["prefill"]["operations"] == plain["prefill"]["operations"]
    assert few["decode"]["expected"] < 0.5 * plain["decode"]["expected"]


def test_layers_in_the_hosts_memory() -> None:
    work = ("llama-8b", "--batch", "8")
    plain, offloaded = plan(*work), plan(*work, "--cpu-offload-gb", "4")
    layer = 2 * (4096 * (6144 + 4096 + 3 * 14336) + 2 * 4096)
    before, after = (one["bytes_a_device"] for one in (plain, offloaded))
    assert after["on_host"] == 10 * layer  # nine are less than 4 GiB
    assert after["weights"] == before["weights"] - 10 * layer
    assert after["arriving"] == 2 * layer
    assert after["cache"] == before["cache"] + 8 * layer
    assert offloaded["decode"]["floor"] == pytest.approx(10 * layer / 64e9)
    assert offloaded["prefill"] == {**plain["prefill"], "host_read": 10 * layer}
    assert (
        "4.4 GB in the host's memory, 10 of 32 layers"
        in planned(*work, "--cpu-offload-gb", "4").out
    )
    refused = planned(*work, "--cpu-offload-gb", "4", "--pp", "2")
    assert refused.status and "--cpu-offload-gb with --pp 2" in refused.err


def test_devices_that_share_layers() -> None:
    one, four, sixteen = (plan("llama-8b", "--tp", tp) for tp in ("1", "4", "16"))
    whole = one["bytes_a_device"]
    part = four["bytes_a_device"]
    norms = 2 * 65 * 4096  # which every device holds
    assert part["weights"] == (whole["weights"] - norms) / 4 + norms
    assert part["cache_token"] == whole["cache_token"] / 4
    # Eight heads of keys and values: sixteen devices hold each twice.
    assert sixteen["bytes_a_device"]["cache_token"] == whole["cache_token"] / 8
    sums, logits = four["decode"]["exchanges"]
    hidden = 64 * 4096 * 2
    assert sums["count"] == 2 * 32 + 1
    assert sums["bytes"] == 65 * int(2 * 3 / 4 * hidden)
    assert sums["seconds"] == pytest.approx(65 * (2 * 3 / 4 * hidden / 450e9 + 10e-6))
    assert sums["link"] == "NVLink"
    assert (logits["count"], logits["bytes"]) == (1, 64 * 128256 * 4 * 3 // 4)
    assert sixteen["decode"]["exchanges"][0]["link"] == "NVLink and network"


def test_stages() -> None:
    flat = plan("llama-8b", "--tp", "8", "--hosts", "1")
    deep = plan("llama-8b", "--tp", "8", "--pp", "2", "--hosts", "2")
    norms = 2 * 65 * 4096
    weights = flat["bytes_a_device"]["weights"] - norms
    assert deep["bytes_a_device"]["weights"] == weights / 2 + 2 * 33 * 4096
    assert deep["bytes_a_device"]["cache_token"] == flat["bytes_a_device"]["cache_token"] / 2
    assert deep["decode"]["tokens"] == 32
    assert deep["seconds_a_token"] == 2 * deep["decode"]["expected"]
    sums, _, handed, last = deep["decode"]["exchanges"]
    assert (sums["count"], sums["link"]) == (33, "NVLink")
    assert (handed["bytes"], handed["link"]) == (32 * 4096 * 4, "network")
    assert last["link"] == "NVLink and network"


def test_replicas_only_multiply() -> None:
    one, three = plan("llama-8b"), plan("llama-8b", "--dp", "3")
    assert three["bytes_a_device"] == one["bytes_a_device"]
    assert three["decode"] == one["decode"]
    expected = pytest.approx(3 * one["decode_tokens_a_second"], rel=1e-12)
    assert three["decode_tokens_a_second"] == expected


def test_experts_are_read_when_they_are_picked() -> None:
    few, many = (plan("mixtral-8x7b", "--tp", "8", "--batch", batch) for batch in ("1", "512"))
    experts = 2 * 32 * 8 * 3 * 4096 * 14_336 // 8
    read = many["decode"]["weights_read"] - few["decode"]["weights_read"]
    assert read == pytest.approx(experts * (1 - 2 / 8), rel=1e-3)


def test_devices_that_share_experts() -> None:
    words = ("deepseek-v3", "--dp", "128", "--max-num-batched-tokens", "1024")
    apart, spread = plan(*words), plan(*words, "--ep", "128")
    expert = 3 * 7168 * 2048  # in each of 58 layers, 256 of them
    before, after = (one["bytes_a_device"]["weights"] for one in (apart, spread))
    assert before - after == 2 * 58 * 254 * expert
    (sent,) = spread["decode"]["exchanges"]
    assert sent["count"] == 2 * 58
    assert sent["bytes"] == pytest.approx(116 * 64 * 8 * 7168 * 2 * 127 / 128)
    assert sent["seconds"] == pytest.approx(sent["bytes"] / 50e9 + 116 * 35e-6)
    # As many tokens meet at each expert as without: 128 replicas, of which each has two.
    assert spread["prefill"]["operations"] == pytest.approx(apart["prefill"]["operations"])
    # All experts of a device are needed by somebody.
    assert spread["decode"]["weights_read"] > 0.98 * (after - 2 * 129_280 * 7168)


@pytest.mark.parametrize(
    "words",
    [("llama-8b", "--ep", "1"), ("deepseek-v3", "--dp", "96", "--ep", "96"),
     ("deepseek-v3", "--dp", "8", "--ep", "16"), ("deepseek-v3", "--tp", "8", "--ep", "4")],
)  # fmt: skip
def test_experts_that_cannot_be_spread(words: tuple[str, ...]) -> None:
    done = planned(*words)
    assert done.status == 1
    assert "--ep" in done.err


def test_devices_that_divide_the_cached_tokens() -> None:
    """Of sixteen devices two have each of the eight KV heads: copies of it, or half the tokens."""
    words = ("llama-70b", "--tp", "16", "--batch", "8", "--context", "131072")
    copies, halves = plan(*words), plan(*words, "--dcp", "2")
    assert halves["bytes_a_device"]["weights"] == copies["bytes_a_device"]["weights"]
    token = 2 * 80 * 128 * 2  # keys and values, layers, width
    assert copies["bytes_a_device"]["cache_token"] == token
    assert halves["bytes_a_device"]["cache_token"] == token // 2
    assert halves["decode"]["cache_read"] == copies["decode"]["cache_read"] // 2
    assert halves["decode"]["operations"] == copies["decode"]["operations"]
    *_, sent = halves["decode"]["exchanges"]
    assert sent["count"] == 3 * 80
    # Of 8 tokens, the queries of 4 heads, and as many results with two log-sum-exps each.
    assert sent["bytes"] == 80 * 8 * 4 * (128 * 2 + (128 + 2) * 4)
    text = planned(*words, "--dcp", "2").out
    assert "tp 16 (dcp 2) x pp 1" in text and "240 gathers and sums of divided caches" in text


def test_latent_vectors_are_divided_too() -> None:
    words = ("deepseek-v3", "--tp", "16", "--context", "65536", "--device", "h200")
    whole, parts = plan(*words), plan(*words, "--dcp", "16")
    assert whole["bytes_a_device"]["cache_token"] == 61 * 576 * 2
    assert parts["bytes_a_device"]["cache_token"] == pytest.approx(61 * 576 * 2 / 16, abs=1)
    sent = parts["decode"]["exchanges"][-1]
    assert sent["bytes"] == 61 * 64 * 8 * 15 * (576 * 2 + (512 + 16) * 4)


def test_groups_that_divide_the_tokens_of_a_step() -> None:
    words = ("llama-8b", "--batch", "1", "--context", "131072", "--max-num-batched-tokens", "16384")
    one, eight = plan(*words), plan(*words, "--pcp", "8")
    assert eight["bytes_a_device"]["weights"] == one["bytes_a_device"]["weights"]
    assert eight["layout"]["hosts"] == 1 and "on 8 x" in planned(*words, "--pcp", "8").out
    assert eight["prefill"]["operations"] == pytest.approx(one["prefill"]["operations"] / 8)
    (sent,) = eight["prefill"]["exchanges"]
    assert sent["count"] == 2 * 32 + 1  # keys and values of each layer, and hidden states
    entries = 2 * 32 * 8 * 128 * 2 * 16384 // 8
    assert sent["bytes"] == pytest.approx(7 * entries, rel=0.01)
    # A decode of one request gains nothing.
    assert eight["decode"]["weights_read"] == one["decode"]["weights_read"]
    assert eight["decode"]["cache_read"] == one["decode"]["cache_read"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-8b", "--tp", "4", "--dcp", "3"), "--dcp 3 with --tp 4: expected a divisor"),
        (("llama-8b", "--dcp", "0"), "--dcp 0: expected 1 or more"),
        (("llama-8b", "--pcp", "2", "--pp", "2"), "--pcp 2 with --pp 2: engines do not have both"),
        (("deepseek-v3", "--pcp", "2", "--ep", "2", "--dp", "2"), "--pcp 2 with --ep 2"),
        (("qwen3-next-80b-a3b", "--pcp", "2"), "not all of attention to cached tokens"),
    ],
)
def test_tokens_that_cannot_be_divided(words: tuple[str, ...], message: str) -> None:
    done = planned(*words)
    assert done.status == 1
    assert message in done.err


def test_windows_bound_what_is_read(tmp_path: Path) -> None:
    settings = {
        **PUBLISHED["llama-8b"],
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 1024,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    found = plan(
        str(tmp_path), "--batch", "2", "--context", "4096", "--max-num-batched-tokens", "256"
    )
    assert found["decode"]["cache_read"] == 2 * 1024 * found["bytes_a_device"]["cache_token"]


def test_what_requests_share_is_held_once_and_read_by_teams() -> None:
    words = ("llama-8b", "--batch", "64", "--context", "4096")
    apart, together = plan(*words), plan(*words, "--shared", "3100")
    token = apart["bytes_a_device"]["cache_token"]
    # Tiles of 16 queries have room for 4 rows of 4 heads for each KV head; multiples of 128 tokens.
    saved = (64 - 16) * 3072 * token
    assert together["decode"]["cache_saved"] == saved
    assert together["decode"]["cache_read"] == apart["decode"]["cache_read"] - saved
    assert together["decode"]["floor"] == pytest.approx(apart["decode"]["floor"] - saved / 4.8e12)
    assert together["prefill"] == apart["prefill"]
    assert together["requests_that_fit"] > 3 * apart["requests_that_fit"]
    shown = planned(*words, "--shared", "3100").out
    assert "of which the first 3,100 are the same" in shown
    assert "of cache less, as requests read together" in shown
    assert plan(*words, "--shared", "255")["decode"]["cache_saved"] == 0, "not worth it"


def test_what_does_not_fit_says_so() -> None:
    result = planned("mixtral-8x7b", "--device", "l40s")
    assert result.status == 1
    assert "too much: it does not fit" in result.out
    result = planned("llama-8b", "--device", "l40s", "--batch", "500")
    assert result.status == 1
    assert "fewer than asked for" in result.out
    assert planned("llama-8b", "--device", "l40s", "--batch", "8").status == 0


@pytest.mark.slow
def test_the_smallest_tp_that_fits_is_named() -> None:
    result = planned("mixtral-8x7b", "--device", "l40s", "--batch", "8")
    assert result.status == 1
    [tp] = re.findall(r"The smallest --tp that fits is (\d+)\.", result.out)
    words = ("mixtral-8x7b", "--device", "l40s", "--batch", "8", "--tp")
    assert planned(*words, tp).status == 0 and plan(*words, tp)["smallest_tp"] is not None
    assert planned(*words, str(int(tp) // 2)).status == 1
    assert "up to 64 either" in planned("llama-8b", "--batch", "900000").out
    assert plan("llama-8b")["smallest_tp"] == 1


def test_without_a_context_the_models_own_is_the_most(tmp_path: Path) -> None:
    settings = {**PUBLISHED["qwen3-0.6b"], "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert plan(str(tmp_path))["work"]["context"] == 512
    assert plan("qwen3-0.6b")["work"]["context"] == 4096
    assert "takes at most 512 tokens" in planned(str(tmp_path), "--context", "4096").err


def test_a_misspelt_shape_gets_a_suggestion() -> None:
    assert "Did you mean 'llama-70b'?" in planned("lama-70b").err
    assert all(name in planned("nowhere").err for name in PUBLISHED)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tp", "0"], "--tp 0: expected 1 or more"),
        (["--tp", "8", "--hosts", "3"], "8 devices (tp 8 x pp 1 x dp 1) on 3 hosts"),
        (["--tp", "6", "--pp", "4", "--hosts", "6"], "expected one to divide the other"),
        (["--pp", "40"], "this model has only 32 layers"),
        (["--context", "200000"], "takes at most 131072 tokens"),
        (["--shared", "4096"], "--shared 4096: expected fewer tokens than the 4,096"),
        (["--batch", "0"], "--batch 0: expected 1 or more"),
        (["--dtype", "int3"], "dtype: given 'int3'"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], message: str) -> None:
    result = planned("llama-8b", *words)
    assert result.status == 1
    assert message in result.err


def test_hosts_have_eight_devices_unless_told() -> None:
    assert checked_layout(8, 2, 2).hosts == 4
    assert checked_layout(4).hosts == 1
    with pytest.raises(ConfigError, match="the same number on each"):
        checked_layout(3, 3)


def test_every_published_shape_is_understood() -> None:
    for settings in PUBLISHED.values():
        assert model_config(settings).dtype == "bfloat16"


@pytest.mark.slow
def test_what_the_readme_shows_is_what_is_printed() -> None:
    text = (ROOT / "examples" / "multihost" / "README.md").read_text()
    shown = re.findall(r"\$ jengine plan (.*)\n((?:.*\n)*?)```", text)
    assert len(shown) == 2
    for words, expected in shown:
        assert planned(*words.split()).out == expected


def test_no_device_is_started() -> None:
    """A platform that does not exist would fail as soon as JAX looked for devices."""
    done = subprocess.run(
        [sys.executable, "-m", "jengine", "plan", "qwen3-0.6b", "--tp", "2"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "nowhere", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 x H200" in done.stdout
    assert "Assumptions" in done.stdout


def test_a_page_of_charts(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert "Memory of one device" in planned("llama-70b", "--tp", "8", "--html", str(page)).out
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 3 and "It fits." in text and "llama-70b" in text
    sizes = [int(one) for one in re.findall(r"<title>(\d+): Output tokens", text)]
    assert sizes[0] == 1 and sizes == [2**power for power in range(len(sizes))]
    done = planned("llama-70b", "--batch", "4", "--html", str(page))
    assert done.status == 1
    text = page.read_text(encoding="utf-8")
    assert "It does not fit. The smallest --tp that fits is" in text and text.count("<svg") == 1


def test_a_page_in_no_folder() -> None:
    done = planned("llama-8b", "--html", "/none/of/these.html")
    assert done.status == 1 and "a folder that exists" in done.err


def test_memory_nodes_of_cpus_by_hand() -> None:
    words = ("llama-8b", "--device", "cpu", "--batch", "1", "--context", "1000", "--node-gb", "64")
    few, many = (plan(*words, "--cores", str(cores)) for cores in (8, 96))
    assert few["bytes_a_device"]["usable"] == int(0.92 * 64e9)
    read = few["decode"]["weights_read"] + few["decode"]["cache_read"]
    assert few["decode"]["floor"] == pytest.approx(read / (8 * 32e9))
    assert many["decode"]["floor"] == pytest.approx(read / 460e9)  # all that the memory gives
    # The caller's threads 1 and 2 are awake after 5 and 11 us, theirs, 3 to 6, after at most 22.
    # Thread 2 begins its tasks last: it has woken two by 11 + 12 us.
    assert few["decode"]["launches"] == pytest.approx(32 * 6 * 23e-6)
    # 128 panels: 16 for each of 8 cores; two for some of 96 cores, one for the others.
    slow = few["decode"]["expected"] - few["decode"]["launches"]
    assert slow == pytest.approx(few["decode"]["floor"] / 0.9)
    slow = many["decode"]["expected"] - many["decode"]["launches"]
    assert slow == pytest.approx(many["decode"]["floor"] / (0.9 * 128 / 192))


@pytest.mark.parametrize("requests", ["1", "8", "64"])
def test_more_cores_in_a_node_are_never_slower(requests: str) -> None:
    words = f"llama-8b --device cpu --batch {requests} --context 1024 --node-gb 99".split()
    found = [
        round(plan(*words, "--cores", str(cores))["decode"]["expected"], 9)
        for cores in (8, 16, 32, 64)
    ]
    assert found == sorted(found, reverse=True)


def test_each_memory_node_has_a_replica_of_its_own() -> None:
    words = ("llama-8b", "--device", "cpu", "--batch", "4", "--context", "1000")
    one, two = plan(*words), plan(*words, "--nodes", "2")
    assert two["layout"]["dp"] == 2 and two["decode"] == one["decode"]
    assert two["decode_tokens_a_second"] == pytest.approx(2 * one["decode_tokens_a_second"])
    assert "numactl --cpunodebind=N" in planned(*words, "--nodes", "2").out
    assert "H200" not in planned(*words).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cores", "8"), "--cores: expected with --device cpu"),
        (("--device", "cpu", "--tp", "2"), "a node runs a whole replica"),
        (("--device", "cpu", "--cores", "0"), "--cores 0: expected 1 or more"),
        (("--device", "cpu", "--nodes", "0"), "--nodes 0: expected 1 or more"),
        (("--device", "cpu", "--node-gb", "0"), "--node-gb 0: expected more than 0"),
    ],
)
def test_what_memory_nodes_cannot_be_is_refused(words: tuple[str, ...], message: str) -> None:
    found = planned("llama-8b", *words)
    assert found.status != 0 and message in found.err
