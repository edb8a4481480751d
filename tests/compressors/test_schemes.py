"""What every scheme says of itself, and that it is so."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError

import klms
from klms import CorruptMessage, SideInformationMismatch, UnsupportedMessage, inspect
from klms.compressors.envelope import MAGIC
from klms.compressors.layout import Layout
from klms.compressors.mask import Mask
from klms.compressors.qsgd import QSGD
from klms.compressors.schemes import SCHEMES, UPDATE_SCHEMES
from klms.compressors.topk import TopK
from klms.errors import InvalidArgument
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
from tests.support.round_trips import KEY, LAYOUT, all_round_trips, hexadecimal, material, round_trip, small


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


@pytest.mark.parametrize("name", SCHEMES)
def test_layers_without_entries_change_nothing_that_arrives(name):
    """They may stand first, last or between others."""
    names, shapes = LAYOUT.names, LAYOUT.shapes
    hollow = Layout(
        ("first", *names[:1], "between", *names[1:], "last"), ((0,), *shapes[:1], (0, 3), *shapes[1:], (0,))
    )
    scheme = SCHEMES[name]
    decoded = []
    for layout in (LAYOUT, hollow):
        compressor = scheme.create(layout, {})
        update, side = material(name, compressor)
        message = compressor.encode(update, side, key=KEY, rng=np.random.default_rng(0))
        decoded.append(compressor.decode(message, side, key=KEY).vector)
    np.testing.assert_array_equal(decoded[0], decoded[1])


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


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("other", [{"round": 3}, {"client": 4}, {"seed": 2}])
def test_a_message_is_bound_to_its_round_client_and_seed(name, other):
    """Replayed in another round, or under another client's name, it is refused: no scheme decodes it into noise."""
    compressor = small(name)
    message, _ = round_trip(name)
    with pytest.raises((CorruptMessage, SideInformationMismatch), match=r"round, client|\(seed, round, client\)"):
        compressor.decode(message, material(name, compressor)[1], key=replace(KEY, **other))


def test_files_have_no_key_and_are_no_messages():
    mask = np.arange(LAYOUT.d).astype(np.uint8) % 2
    stored = Mask(LAYOUT).pack(mask)
    np.testing.assert_array_equal(Mask(LAYOUT).unpack(stored), mask)
    with pytest.raises(UnsupportedMessage, match="version 1"):
        Mask(LAYOUT).decode(stored, {}, key=KEY)
    with pytest.raises(UnsupportedMessage, match="version 2"):
        Mask(LAYOUT).unpack(Mask(LAYOUT).pack(mask, KEY))


@pytest.mark.parametrize("name", SCHEMES)
def test_no_message_is_longer_than_its_model_warrants(name, monkeypatch):
    """A stranger's megabytes are refused before even their checksum is computed."""
    compressor = small(name)
    message, side = round_trip(name)[0] + bytes(1 << 20), material(name, compressor)[1]
    monkeypatch.setattr("zlib.crc32", None)
    with pytest.raises(CorruptMessage, match="too many"):
        compressor.decode(message, side, key=KEY)


def test_entries_that_are_sent_are_as_many_as_can_be(monkeypatch):
    """QSGD's mean number follows from the norm; top-k's was agreed. More cost more time than an honest message."""
    rng = np.random.default_rng(0)
    layout = Layout(("w",), ((8192,),))
    for levels in (1, 4):
        for update in (np.ones(8192), rng.normal(0, 1, 8192)):  # equal entries have the most
            scheme = QSGD(layout, levels, 512)
            for n in range(20):
                message = scheme.encode(update.astype(np.float32), {}, key=KEY, rng=np.random.default_rng(n))
                assert scheme.decode(message, {}, key=KEY).vector.size == 8192
    dense = QSGD(layout, 20, 512).encode(np.ones(8192, dtype=np.float32), {}, key=KEY, rng=rng)
    monkeypatch.setattr("klms.compressors.elias.read", None)
    with pytest.raises(CorruptMessage, match="never"):
        QSGD(layout, 1, 512).decode(dense, {}, key=KEY)
    many = TopK(layout, 0.5).encode(np.ones(8192, dtype=np.float32), {}, key=KEY, rng=rng)
    with pytest.raises(SideInformationMismatch, match="82 were agreed"):
        TopK(layout, 0.01).decode(many, {}, key=KEY)


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


def kernels() -> set[str]:
    """Every function of klms that Numba compiles, by its full name."""
    folder, found = Path(klms.__file__).parent, set()
    for file in folder.rglob("*.py"):
        module = ".".join(["klms", *file.relative_to(folder).with_suffix("").parts])
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and {ast.unparse(d) for d in node.decorator_list} & {
                "kernel",
                "inlined",
            }:
                found.add(f"{module}.{node.name}")
    return found


def test_plain_python_computes_what_compiled_kernels_do():
    """Every kernel there is, without Numba and with warnings as errors: the same bytes and the same vectors."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "error", "-m", "tests.support.round_trips"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    assert not plain["compiled"]
    assert kernels() - set(plain["called"]) == set()
    compiled = {name: hexadecimal(trip) for name, trip in all_round_trips()}
    assert plain["trips"].keys() == compiled.keys()
    for name, trip in compiled.items():
        assert plain["trips"][name] == trip, name
