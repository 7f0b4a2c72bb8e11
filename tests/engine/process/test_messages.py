"""Messages as bytes and back, and bytes that are no message."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jengine.config import (
    AttentionConfig,
    DistanceBiasConfig,
    ExpertsConfig,
    LatentConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    RopeConfig,
    RoutingConfig,
    TextStackConfig,
)
from jengine.engine.process.model_frame import ModelFrame
from jengine.engine.process.to_core import decode_from_front
from jengine.engine.process.to_front import Failure, Outputs, Pulse, decode_from_core
from jengine.errors import CapacityError, EngineDead, JengineError
from jengine.logprobs import StepLogprobs
from jengine.outputs import TokenDelta
from jengine.wire.arrays import ARRAY, ArrayFrame, unpack_array
from jengine.wire.message import BadFrame, encode
from tests.engine.process.scripted_core import Settings, served_core

MIXED = ModelConfig(
    "Mixed", 100, 32, 64,
    (
        LayerConfig(AttentionConfig(4, 2, 8, window=16, rope=None, sinks=True), MlpConfig(64)),
        LayerConfig(
            AttentionConfig(4, 4, 8, rope=RopeConfig(5e5, "llama3", 8.0), qk_norm="head"),
            ExpertsConfig(8, 2, 16, "gelu_tanh", routing=RoutingConfig(normalize=False)),
        ),
        LayerConfig(LatentConfig(4, 8, 4, 2, 6, query_rank=5, bias=True), MlpConfig(64)),
        LayerConfig(
            AttentionConfig(4, 4, 8, distance_bias=DistanceBiasConfig()), MlpConfig(64),
            attention_norm=False, cross=AttentionConfig(4, 4, 8, scale=1.0),
        ),
    ),
    norm="rms_one_plus", logit_soft_cap=30.0, eos_token_ids=(1, 2), dtype="bfloat16",
    text_stack=TextStackConfig(2, AttentionConfig(4, 4, 8), MlpConfig(64), 16, 0),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "uint8", "bool", "f8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1, 2, 2, 1)])
def test_arrays_arrive_as_they_were(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    delta = TokenDelta(request_id="a", token_ids=[1], captured={"tap": array.T})
    arrived = decode_from_core(encode(Outputs([delta])))
    assert isinstance(arrived, Outputs)
    found = arrived.deltas[0].captured["tap"]
    assert found.dtype == array.dtype and found.flags.writeable
    np.testing.assert_array_equal(found, array.T)


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (ArrayFrame("<f4", (2, 2), b"\0" * 15), "takes 16 bytes; found 15"),
        (ArrayFrame("<f4", (2**40, 2**40), b"\0" * 16), "found 16"),
        (ArrayFrame("<f4", (-1, -4), b"\0" * 16), "shape"),
        (ArrayFrame("<f4", (1,) * 9, b"\0" * 4), "shape"),
        (ArrayFrame("|O", (1,), b"\0" * 8), "expected numbers"),
        (ArrayFrame("<U4", (1,), b"\0" * 16), "expected numbers"),
        (ArrayFrame("<f4,<i4", (1,), b"\0" * 8), "expected numbers"),
        (ArrayFrame("no such type", (1,), b"\0"), "dtype"),
    ],
)
def test_arrays_whose_parts_do_not_fit_are_refused(frame: ArrayFrame, problem: str) -> None:
    data = msgspec.msgpack.encode(frame)
    with pytest.raises(msgspec.ValidationError, match=problem):
        unpack_array(ARRAY, memoryview(data))
    with pytest.raises(msgspec.ValidationError, match="extension 7"):
        unpack_array(7, memoryview(data))


def test_log_probabilities_must_be_three_arrays() -> None:
    one = np.zeros((1, 2), np.float32)
    scores = StepLogprobs(one, one.astype(np.int32), np.zeros(1, np.int32))
    delta = TokenDelta(request_id="a", token_ids=[1], logprobs=scores)
    arrived = decode_from_core(encode(Outputs([delta])))
    assert isinstance(arrived, Outputs) and isinstance(arrived.deltas[0].logprobs, StepLogprobs)
    for wrong in ([one, one], [one, one, 5], "text", {"values": one}):
        delta = TokenDelta(request_id="a", token_ids=[1], logprobs=wrong)
        with pytest.raises(BadFrame, match="that are no message: Expected"):
            decode_from_core(encode(Outputs([delta])))


@given(st.binary(max_size=300))
def test_random_bytes_are_a_message_or_refused(data: bytes) -> None:
    for decode in (decode_from_front, decode_from_core):
        try:
            assert encode(decode(data))
        except BadFrame as error:
            assert str(len(data)) in str(error)


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_message_is_a_message_or_refused(place: int, byte: int) -> None:
    scores = StepLogprobs(
        np.ones((1, 2), np.float32), np.ones((1, 2), np.int32), np.ones(1, np.int32)
    )
    good = encode(Outputs([TokenDelta(request_id="a", token_ids=[1], logprobs=scores)]))
    place %= len(good)
    for damaged in (good[:place] + bytes([byte]) + good[place + 1 :], good[:place]):
        try:
            decode_from_core(damaged)
        except BadFrame as error:
            assert str(len(damaged)) in str(error)


def test_a_model_arrives_as_it_was() -> None:
    data = msgspec.msgpack.encode(ModelFrame.of(MIXED))
    assert msgspec.msgpack.decode(data, type=ModelFrame).config == MIXED
    no_block = msgspec.structs.replace(ModelFrame.of(MIXED).layers[0], mlp=None)
    with pytest.raises(msgspec.ValidationError, match="a layer with 0 times a feed-forward block"):
        _ = msgspec.structs.replace(ModelFrame.of(MIXED), layers=(no_block,)).config
    no_mixer = msgspec.structs.replace(ModelFrame.of(MIXED).layers[2], latent=None)
    with pytest.raises(msgspec.ValidationError, match="a layer with 0 times a mixer"):
        _ = msgspec.structs.replace(ModelFrame.of(MIXED), layers=(no_mixer,)).config


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CapacityError("full"), CapacityError),
        (EngineDead("gone"), EngineDead),
        (ValueError("odd"), EngineDead),
    ],
)
def test_errors_arrive_by_their_class(error: Exception, kind: type[JengineError]) -> None:
    found = Failure.of(error).error
    assert type(found) is kind and str(error) in str(found)
    assert type(Failure("Exception", "text").error) is JengineError
    assert type(Failure("error_named", "text").error) is JengineError


def test_the_state_of_a_core_travels_with_its_counts() -> None:
    state = served_core(Settings()).client.state()
    arrived = decode_from_core(encode(Pulse(state)))
    assert isinstance(arrived, Pulse) and arrived.state == state
