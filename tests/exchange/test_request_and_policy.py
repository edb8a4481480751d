"""Requests, and the policy that chooses what they ask for."""

import json
from dataclasses import replace

import numpy as np
import pytest

from klms.codec import SharedKey
from klms.compressors.layout import Layout
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, OutOfSync, UnsupportedMessage
from klms.exchange.model import Model
from klms.exchange.policy import CompressionPolicy
from klms.exchange.reply import OVERHEAD
from klms.exchange.request import CompressionRequest, RequestBody, agreement, changed

QSGD = UPDATE_SCHEMES["qsgd"].settings.checked({"levels": 4})


KEY = SharedKey(5, 2, 1)
SIDE = {"counts": np.arange(6)}


def request(**changes) -> CompressionRequest:
    made = CompressionRequest("qsgd", QSGD, 5, ("steps",), side=SIDE)
    return replace(made, **changes)


def travelled(sent: CompressionRequest) -> CompressionRequest:
    body = RequestBody.from_bytes(RequestBody(sent.terms(), True, sent.side, b"steps").to_bytes())
    assert body.broadcast == b"steps"
    return CompressionRequest.read(body.merged({}), body.side)


def test_a_request_survives_the_way():
    sent = request()
    read = travelled(sent)
    assert replace(read, side={}) == replace(sent, side={})
    np.testing.assert_array_equal(read.side["counts"], np.arange(6))
    assert read.key(2, 1) == KEY
    assert agreement(read.terms(), read.side, iter(())) == agreement(sent.terms(), sent.side, iter(()))


def test_terms_that_a_client_holds_are_not_repeated():
    held, new = request().terms(), request(seed=6).terms()
    body = RequestBody.from_bytes(RequestBody(changed(new, held), False, {}, b"").to_bytes())
    assert body.terms == {"seed": 6}
    assert body.merged(held) == new
    with pytest.raises(OutOfSync, match="terms that this client does not hold"):
        body.merged({})


def test_a_body_that_is_cut_or_makes_no_sense_is_refused():
    data = RequestBody(request().terms(), True, SIDE, b"").to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptMessage):
            RequestBody.from_bytes(data[:length])
    for terms in (b"{", b"[1]", b"[" * 100_000, b"{" + bytes(4)):
        body = b"\0" + len(terms).to_bytes(4, "little") + terms + bytes(4)
        with pytest.raises(CorruptMessage, match="terms of the request"):
            RequestBody.from_bytes(body)
    with pytest.raises(CorruptMessage, match="does not know"):
        RequestBody.from_bytes(b"\2" + data[1:])


@pytest.mark.parametrize("name", list(UPDATE_SCHEMES))
def test_a_request_carries_the_settings_of_its_scheme_only(name):
    scheme = UPDATE_SCHEMES[name]
    sent = request(scheme=name, settings=scheme.settings(), side={})
    assert sent.terms()["settings"].keys() == scheme.settings.model_fields.keys() - {"rate"}
    assert (sent.terms()["rate"] is not None) == ("rate" in scheme.settings.model_fields)
    read = travelled(sent)
    assert read.settings == scheme.settings()
    assert read.error_feedback == (name in ("topk", "sparseloco"))
    layout, update = Layout(("w",), ((64, 4),)), np.random.default_rng(0).standard_normal(256).astype(np.float32)
    compressor = read.compressor(layout, 1)
    message = compressor.encode(update, compressor.start(), key=KEY, rng=np.random.default_rng(0))
    decoded = compressor.decode(message, compressor.start(), key=KEY).vector
    assert float(decoded @ update) > 0


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("version", 1, UnsupportedMessage, "version 1"),
        ("scheme", "zip", UnsupportedMessage, "'zip'"),
        ("scheme", "fedpm", UnsupportedMessage, "'fedpm'"),
        ("scheme", 3, InvalidArgument, "for scheme"),
        ("seed", True, InvalidArgument, "for seed"),
        ("settings", {"levels": 0}, InvalidArgument, "levels"),
        ("settings", {"keep": 0.1}, InvalidArgument, "keep"),
        ("settings", 3, InvalidArgument, "for settings"),
        ("sent_unchanged", "{", InvalidArgument, "for sent_unchanged"),
        ("sent_unchanged", [3], InvalidArgument, "for sent_unchanged"),
        ("server", "no key", InvalidArgument, "hexadecimal"),
        ("updates", 1, InvalidArgument, "for updates"),
    ],
)
def test_a_request_that_cannot_be_met_says_why(name, value, error, words):
    with pytest.raises(error, match=words):
        CompressionRequest.read({**request().terms(), name: value}, SIDE)


def test_what_both_sides_must_share_is_told_apart():
    def agreed(of: CompressionRequest) -> bytes:
        return agreement(of.terms(), of.side, iter([b"model"]))

    base = agreed(request())
    changes = {
        "seed": 6,
        "side": {"counts": np.arange(1, 7)},
        "scheme": "eden",
        "settings": UPDATE_SCHEMES["qsgd"].settings(levels=5),
        "sent_unchanged": (),
        "updates": True,
    }
    for name, value in changes.items():
        assert agreed(request(**{name: value})) != base, name
    assert agreement(request().terms(), SIDE, iter([b"other"])) != base


def model(d: int, beside: int = 0) -> Model:
    arrays = {"w": np.zeros((d, 1), dtype=np.float32)}
    exact = {"b": np.zeros(beside, dtype=np.float32)} if beside else {}
    return Model(arrays | exact, frozenset(exact))


def fitted(scheme, bits, values, to):
    plan = CompressionPolicy.of(scheme, bits, values).for_model(to)
    assert not plan.groups
    return plan.scheme.name, plan.settings


def test_the_default_is_the_scheme_of_least_error():
    for bits, d in ((None, 100_000), (None, 1_000_000), (4.0, 100_000), (0.1, 100_000)):
        assert fitted("auto", bits, {}, model(d))[0] == "trellis"


@pytest.mark.parametrize("d", [2_049, 10_007, 70_000])
@pytest.mark.parametrize("bits", [1.0, 2.0, 3.9])
@pytest.mark.parametrize(("scheme", "values"), [("auto", {}), ("eden", {}), ("trellis", {"effort": "fast"})])
def test_a_payload_keeps_to_the_bits_whatever_the_padding(scheme, values, d, bits):
    made = model(d, beside=10)
    name, settings = fitted(scheme, bits, values, made)
    compressor = UPDATE_SCHEMES[name].make(made.layout, settings, 1)
    sent = []
    for seed in range(5):
        update = np.random.default_rng(seed).standard_normal(d).astype(np.float32)
        message = compressor.encode(update, {}, key=SharedKey(1, 2, 3), rng=np.random.default_rng(0))
        sent.append(8 * (OVERHEAD + made.head_bytes + len(message)) / made.size)
    if name == "eden":
        assert 0.85 * bits < min(sent) <= max(sent) <= bits * (1 + 1e-9)
    else:  # levels are entropy-coded, so the length varies
        assert 0.85 * bits < np.mean(sent) <= 1.005 * bits
        assert max(sent) <= 1.02 * bits


def test_settings_are_converted_and_keep_the_defaults_of_their_scheme():
    _, settings = fitted("topk", None, {"keep": 1}, model(5000))
    assert (settings.keep, type(settings.keep)) == (1.0, float)
    assert fitted("trellis", None, {}, model(5000))[1].effort == "balanced"
    assert fitted("qsgd-klms", None, {}, model(5000))[1].bits == 8


def test_tiny_models_are_sent_unchanged():
    assert fitted("auto", 1.0, {}, model(40, beside=2))[0] == "float32"


def test_the_bits_count_the_whole_payload():
    name, settings = fitted("auto", 1.0, {}, model(44_190, beside=236))
    assert name == "trellis"
    assert 0.8 < settings.rate <= (44_426 - 8 * (OVERHEAD + 1 + 4 * 236)) / 44_190
    with pytest.raises(InvalidArgument, match=r"use at least 0\.1"):
        fitted("auto", 0.1, {}, model(44_190, beside=236))


@pytest.mark.parametrize(
    ("scheme", "bits", "settings", "words"),
    [
        ("edan", None, {}, "did you mean 'eden'"),
        ("fedpm", None, {}, "there is no scheme 'fedpm'"),
        ("qsgd", 1.0, {}, "rate of qsgd cannot be set: omit bits_per_parameter, or use eden or trellis"),
        ("qsgd", None, {"level": 4}, "did you mean 'levels'"),
        ("qsgd", None, {"keep": 0.1}, "no setting of qsgd 'keep'"),
        ("auto", None, {"bits": 6}, "name one with scheme="),
        ("eden", None, {"rate": 1.0}, "use bits_per_parameter"),
        ("eden", 0.0, {}, "above 0"),
        ("auto", 33.0, {}, "at most 32"),
        ("trellis", 9.0, {}, "at most 8"),
        ("qsgd", None, {"levels": 0}, "levels must be at least 1, got 0"),
        ("topk", None, {"keep": -1.0}, "keep must be above 0"),
        ("qsgd-klms", None, {"selection": "best"}, "selection"),
    ],
)
def test_a_wrong_policy_is_explained(scheme, bits, settings, words):
    with pytest.raises(InvalidArgument, match=words):
        CompressionPolicy.of(scheme, bits, settings)


@pytest.mark.parametrize(
    ("bits", "name"), [(8, "trellis"), (12, "trellis"), (16, "float16"), (24, "float16"), (32, "float32")]
)
def test_auto_takes_the_scheme_of_least_error_at_high_rates_too(bits, name):
    made = model(20_000)
    update = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    errors = {}
    for scheme in {"trellis", "float16", "float32", "int8", name}:
        settings = UPDATE_SCHEMES[scheme].settings.checked({"rate": 7.9} if scheme == "trellis" else {})
        compressor = UPDATE_SCHEMES[scheme].make(made.layout, settings, 1)
        message = compressor.encode(update, {}, key=SharedKey(1, 2, 3), rng=np.random.default_rng(0))
        if 8 * len(message) <= 1.01 * bits * update.size:
            errors[scheme] = float(
                np.sum((compressor.decode(message, {}, key=SharedKey(1, 2, 3)).vector - update) ** 2)
            )
    assert fitted("auto", float(bits), {}, made)[0] == name == min(errors, key=errors.get)


def payload_bits(plan, of: Model) -> float:
    request = CompressionRequest(plan.scheme.name, plan.settings, 1, groups=plan.groups)
    compressor = travelled(request).compressor(of.layout, 1)
    update = np.random.default_rng(5).standard_normal(of.layout.d).astype(np.float32)
    message = compressor.encode(update, {}, key=KEY, rng=np.random.default_rng(0))
    decoded = compressor.decode(message, {}, key=KEY).vector
    errors = {
        name: float(((a - b) ** 2).mean())
        for (name, a), (_, b) in zip(of.layout.split(update), of.layout.split(decoded), strict=True)
    }
    return 8 * (OVERHEAD + of.head_bytes + len(message)) / of.size, errors


@pytest.mark.parametrize(
    "asked",
    [{"head.*": 8, "embed*": 0.1}, lambda name: {"head.w": 8, "embed": 0.1}.get(name), {"head.*": 16, "*": 0.5}],
)
def test_arrays_may_have_rates_of_their_own_and_the_whole_keeps_to_its_bits(asked):
    shapes = {"embed": (200, 100), "body": (300, 100), "head.w": (100, 10), "head.b": (10,)}
    made = Model({name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()})
    bits, errors = payload_bits(CompressionPolicy.of("auto", 1.0, {}, asked).for_model(made), made)
    assert bits <= 1.0
    if not isinstance(asked, dict) or "*" not in asked:
        assert bits > 0.95  # `body` has what the others leave
        assert errors["head.w"] < 1e-3 < errors["body"] < 0.5 < errors["embed"]
    else:
        assert errors["head.w"] < 1e-6


def test_rates_of_arrays_that_leave_nothing_for_the_others_are_explained():
    made = Model({"a": np.zeros((100, 50), dtype=np.float32), "b": np.zeros((100, 50), dtype=np.float32)})
    with pytest.raises(InvalidArgument, match=r"1 bits per parameter leave no room .*: use at least 4\.0"):
        CompressionPolicy.of("auto", 1.0, {}, {"a": 8}).for_model(made)
    with pytest.raises(InvalidArgument, match="use at least"):
        CompressionPolicy.of("auto", 1.0, {}, {"*": 2}).for_model(made)
    with pytest.raises(InvalidArgument, match="array_bits of a must be above 0"):
        CompressionPolicy.of("auto", 1.0, {}, {"a": 0})
    with pytest.raises(InvalidArgument, match="the rate of qsgd cannot be set"):
        CompressionPolicy.of("qsgd", None, {}, {"a": 1})


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ("{}", "for groups"),
        ("[[1]]", "cannot be read"),
        ('[["eden", {"rate": 99}, ["w"]]]', "rate"),
        ('[["eden", {}, ["w"]], ["trellis", {}, ["w"]]]', "an array in two of them"),
        ('[["zip", {}, ["w"]]]', "'zip'"),
        ("[" + ",".join(['["eden", {}, []]'] * 300) + "]", "more than 256 groups"),
    ],
)
def test_groups_of_a_request_are_checked(groups, words):
    with pytest.raises(KLMSError, match=words):
        CompressionRequest.read({**request().terms(), "groups": json.loads(groups)}, SIDE)


def test_large_models_are_fitted_on_a_part_of_them():
    big = Model({f"w{n}": np.zeros((1, 3_000_000), dtype=np.float16) for n in range(3)})
    name, settings = fitted("auto", 1.0, {}, big)
    assert name == "trellis"
    assert 0.98 < settings.rate <= 1
