"""What every scheme says of itself, and that it is so."""

import json
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError

from klms import UnsupportedMessage, inspect
from klms.compressors.envelope import MAGIC, RETIRED
from klms.compressors.schemes import SCHEMES, UPDATE_SCHEMES
from klms.errors import InvalidArgument, KLMSError
from klms.numerics.philox import (
    DITHER_STREAM,
    G_STREAM,
    ROTATION_STREAMS,
    SUBSET_STREAM,
    U_STREAM,
    WINDOW_STREAM,
    buffer_size,
    words,
)
from tests.support.round_trips import KEY, LAYOUT, material, round_trip, small


def test_names_are_unique_and_keys_of_the_list():
    assert all(name == scheme.name for name, scheme in SCHEMES.items())
    assert len({scheme.title for scheme in SCHEMES.values()}) == len(SCHEMES) >= 14
    assert {name for name, scheme in SCHEMES.items() if scheme.codes == "masks"} == set(SCHEMES) - set(UPDATE_SCHEMES)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_sends_a_vector(name):
    scheme = SCHEMES[name]
    message, decoded = round_trip(name)
    assert decoded.shape == (LAYOUT.d,)
    update, _ = material(name, small(name))
    centred = update - 0.5 if scheme.codes == "masks" else update
    assert float((decoded - decoded.mean()) @ centred) > 0
    assert (decoded.dtype == np.uint8) == (scheme.codes == "masks")
    if scheme.wire_number is None:
        assert inspect(message).d >= LAYOUT.d  # a message of the codec; rotations pad
    else:
        assert message[:2] == MAGIC
        assert message[3] == scheme.wire_number
        assert scheme.wire_number not in RETIRED


def test_schemes_with_one_wire_number_read_each_other():
    numbers = {}
    for name, scheme in SCHEMES.items():
        if scheme.wire_number is not None:
            numbers.setdefault(scheme.wire_number, []).append(name)
    for names in numbers.values():
        for writer in names:
            message, decoded = round_trip(writer)
            for reader in names:
                np.testing.assert_array_equal(small(reader).decode(message, {}, key=KEY).vector, decoded)


@pytest.mark.parametrize("name", SCHEMES)
def test_settings_are_described_and_bounded(name):
    scheme = SCHEMES[name]
    for setting, info in scheme.settings.model_fields.items():
        assert info.description, setting
        assert info.description.endswith(".")
        assert not info.is_required()
        if info.annotation in (int, float):
            assert any(isinstance(bound, Ge | Gt | Le | Lt) for bound in info.metadata), setting
            with pytest.raises(InvalidArgument, match=setting):
                scheme.create(LAYOUT, {setting: -1})
    with pytest.raises(InvalidArgument, match="unheard_of"):
        scheme.create(LAYOUT, {"unheard_of": 1})
    with pytest.raises(ValidationError, match="frozen"):
        scheme.settings().some = 1


@pytest.mark.parametrize("name", SCHEMES)
def test_rates_are_what_messages_cost(name):
    scheme = SCHEMES[name]
    assert scheme.takes_rate == ("rate" in scheme.settings.model_fields)
    if not scheme.takes_rate:
        return
    assert scheme.max_rate > 1
    with pytest.raises(InvalidArgument, match="rate"):
        scheme.create(LAYOUT, {"rate": scheme.max_rate * 1.01})
    for rate in (0.5, scheme.max_rate):
        compressor = scheme.create(LAYOUT, {"rate": rate})
        update, side = material(name, compressor)
        message = compressor.encode(update, side, key=KEY, rng=np.random.default_rng(0))
        assert compressor.decode(message, side, key=KEY).vector.shape == (LAYOUT.d,)
        # The shortest vectors are padded to the smallest pieces that can be rotated.
        assert 0.8 * rate * LAYOUT.d <= 8 * len(message) <= rate * 2 * 256 + 8 * 64


@pytest.mark.parametrize("name", SCHEMES)
def test_what_a_scheme_needs(name):
    scheme = SCHEMES[name]
    assert scheme.needs_side_information == bool(small(name).start())
    if scheme.needs_error_feedback:
        assert not scheme.unbiased(scheme.settings())
    if scheme.directions_only:
        _, decoded = round_trip(name)
        assert set(np.unique(decoded)) <= {-1, 1}
    for point in scheme.operating_points:
        scheme.create(LAYOUT, point)


@pytest.mark.parametrize("name", SCHEMES)
def test_threads_change_no_byte(name):
    scheme = SCHEMES[name]
    messages = set()
    for threads in (1, 2, None):
        compressor = scheme.create(LAYOUT, {}, threads)
        update, side = material(name, compressor)
        messages.add(compressor.encode(update, side, key=KEY, rng=np.random.default_rng(0)))
    assert len(messages) == 1


@pytest.mark.parametrize("number", RETIRED)
def test_messages_of_retired_schemes_are_refused(number):
    assert set(RETIRED) == {6, 7, 9}
    body = struct.pack("<2sBBI", b"KB", 1, number, LAYOUT.d) + bytes(100)
    message = body + zlib.crc32(body).to_bytes(4, "little")
    for name, scheme in SCHEMES.items():
        compressor = small(name)
        with pytest.raises(UnsupportedMessage if scheme.wire_number else KLMSError, match=r"."):
            compressor.decode(message, material(name, compressor)[1], key=KEY)
    with pytest.raises(UnsupportedMessage, match=f"scheme {number} is {RETIRED[number]}.*update klms"):
        small("eden").decode(message, {}, key=KEY)


def test_streams_of_shared_randomness_do_not_overlap():
    """Signs of rotations and words of candidates come from different calls of Philox, for every possible length."""
    starts = sorted([U_STREAM, WINDOW_STREAM, G_STREAM, *ROTATION_STREAMS, SUBSET_STREAM, DITHER_STREAM])
    most_calls = {U_STREAM: 1 << 29, WINDOW_STREAM: 1 << 29, G_STREAM: 1 << 18, SUBSET_STREAM: 1 << 28}
    most_calls |= dict.fromkeys(ROTATION_STREAMS, 1 << 26) | {DITHER_STREAM: 1 << 28}
    assert len(set(starts)) == 7
    for start, following in zip(starts, [*starts[1:], 1 << 32], strict=True):
        assert start + most_calls[start] <= following
    drawn = [words(np.empty(buffer_size(4096), dtype=np.uint64), 0, 4096, s, KEY.words()).copy() for s in starts]
    for n, one in enumerate(drawn):
        for other in drawn[:n]:
            assert (one == other).mean() < 0.01  # one in 65,536 by chance


def test_plain_python_computes_what_compiled_kernels_do():
    """Every kernel on the way of every scheme, without Numba: the same bytes and the same vectors."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "error", "-m", "tests.support.round_trips"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    assert not plain["compiled"]
    assert set(plain["trips"]) == set(SCHEMES)
    for name in SCHEMES:
        message, vector = round_trip(name)
        assert plain["trips"][name] == [message.hex(), vector.tobytes().hex()], name
