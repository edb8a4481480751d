from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from klms.codec import SharedKey
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES, SchemeSettings
from klms.flower.choice import Choice
from klms.flower.model import Model
from klms.flower.order import Order


def order(**changes) -> Order:
    settings = SchemeSettings(levels=4)
    order = Order("qsgd", settings, 5, 2, 1, small=10, feedback=False, kept=("steps",), side={"counts": np.arange(6)})
    return replace(order, **changes)


def test_an_order_survives_the_record():
    sent = order()
    read = Order.read(sent.values())
    assert (read.scheme, read.settings, read.key, read.kept) == (sent.scheme, sent.settings, sent.key, ("steps",))
    np.testing.assert_array_equal(read.side["counts"], np.arange(6))
    assert list(read.agreed()) == list(sent.agreed())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("version", 2, "version 2"),
        ("scheme", "zip", "'zip'"),
        ("scheme", 3, "for scheme"),
        ("seed", True, "for seed"),
        ("settings.rate", "1", "for settings.rate"),
        ("side", b"PK no archive", "side information"),
        ("round", None, "for round"),
    ],
)
def test_an_order_that_cannot_be_followed_says_why(name, value, words):
    with pytest.raises(ValueError, match=words):
        Order.read({**order().values(), name: value})


def test_side_information_with_objects_in_it_is_not_loaded():
    import io

    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="side information"):
        Order.read({**order().values(), "side": buffer.getvalue()})


def test_what_both_sides_must_hold_alike_is_told_apart():
    base = list(order().agreed())
    assert list(order(client=3, round=9).agreed()) == base  # the frame has these
    changes = {"seed": 6, "side": {"counts": np.arange(1, 7)}, "scheme": "eden", "small": 11, "kept": ()}
    for name, value in changes.items():
        assert list(order(**{name: value}).agreed()) != base


def model(d: int, bias: int = 0) -> Model:
    arrays = {"w": np.zeros((d, 1), dtype=np.float32)}
    return Model(arrays | ({"b": np.zeros(bias, dtype=np.float32)} if bias else {}))


def test_the_default_is_the_scheme_of_least_error_within_seconds():
    choice = Choice.of("auto", None, {})
    assert choice.for_model(model(100_000))[0] == "klms-rotated"
    assert choice.for_model(model(1_000_000))[0] == "eden"
    assert Choice.of("auto", 2.5, {}).for_model(model(100_000))[0] == "eden"


@pytest.mark.parametrize("d", [2_049, 10_007, 70_000])
@pytest.mark.parametrize("bits", [1.0, 2.0, 3.9])
@pytest.mark.parametrize("scheme", ["auto", "eden", "klms-rotated"])
def test_a_payload_keeps_to_the_bits_whatever_the_padding(scheme, d, bits):
    made = model(d, bias=10)
    name, settings = Choice.of(scheme, bits, {"bits": 6}).for_model(made)
    update = np.random.default_rng(0).standard_normal(d).astype(np.float32)
    compressor = SCHEMES[name](made.layout, settings, 1)
    message = compressor.encode(update, {}, key=SharedKey(1, 2, 3), rng=np.random.default_rng(0))
    sent = 8 * (24 + made.head_bytes + len(message)) / made.size
    assert 0.9 * bits < sent <= bits + 1e-9


def test_settings_are_converted_as_a_run_s_are():
    settings = Choice.of("topk", None, {"keep": 1, "levels": 4.0}).settings
    assert (settings.keep, type(settings.keep), settings.levels) == (1.0, float, 4)
    assert Choice.of("klms-rotated", None, {}).settings.bits == 10
    assert Choice.of("qsgd-klms", None, {}).settings.bits == 8


def test_tiny_models_pass_as_they_are():
    assert Choice.of("auto", 1.0, {}).for_model(model(40, bias=2))[0] == "float32"


def test_the_bits_are_of_the_whole_payload():
    scheme, settings = Choice.of("auto", 1.0, {}).for_model(model(44_190, bias=236))
    assert scheme == "klms-rotated"
    assert 0.8 < settings.rate < (44_426 - 8 * (24 + 2 + 4 * 236)) / 44_190
    with pytest.raises(ValueError, match=r"say at least 0\.1"):
        Choice.of("auto", 0.1, {}).for_model(model(44_190, bias=236))


@pytest.mark.parametrize(
    ("scheme", "bits", "settings", "words"),
    [
        ("edan", None, {}, "did you mean 'eden'"),
        ("qsgd", 1.0, {}, "qsgd has no rate"),
        ("qsgd", None, {"level": 4}, "did you mean 'levels'"),
        ("eden", None, {"rate": 1.0}, "say bits_per_parameter"),
        ("eden", 0.0, {}, "above 0"),
        ("auto", 9.0, {}, "at most 8"),
        ("klms-rotated", 5.0, {}, "at most 4"),
        ("qsgd", None, {"levels": 0}, "levels: Input should be greater"),
        ("topk", None, {"keep": -1.0}, "keep: Input should be greater"),
        ("qsgd-klms", None, {"selection": "best"}, "selection"),
    ],
)
def test_a_wrong_choice_is_explained(scheme, bits, settings, words):
    with pytest.raises(ValueError, match=words):
        Choice.of(scheme, bits, settings)


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_every_scheme_is_made_by_its_name(scheme):
    assert SCHEMES[scheme](Layout(("w",), ((64, 4),)), SchemeSettings(), 1).start() is not None
