"""`klms.ErrorFeedback`: what a message left out is sent later."""

import numpy as np
import pytest

import klms
from klms import KLMSError, SharedKey
from klms.errors import InvalidArgument, TrainingDiverged


def updates(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    constant = {"w": rng.standard_normal((60, 50)), "b": rng.standard_normal(40)}
    return [
        {name: (a + 0.3 * rng.standard_normal(a.shape)).astype(np.float32) for name, a in constant.items()}
        | {"n": np.array(i)}
        for i in range(count)
    ]


def test_the_sum_of_messages_follows_the_sum_of_updates():
    feedback, rng = klms.ErrorFeedback(), np.random.default_rng(1)
    wanted, sent, plain = np.zeros((60, 50)), np.zeros((60, 50)), np.zeros((60, 50))
    for update in updates(40):
        wanted += update["w"]
        sent += klms.decompress(feedback.compress(update, 1.0, rng=rng))["w"]
        plain += klms.decompress(klms.compress(update, 1.0, rng=rng))["w"]
    left, noise = (float(np.square(one - wanted).sum() / np.square(wanted).sum()) for one in (sent, plain))
    assert left < 0.02
    assert left < noise / 3


def test_the_state_survives_as_bytes():
    first, second = updates(2)
    key = SharedKey(1, 2, 3)
    feedback = klms.ErrorFeedback()
    assert feedback.to_bytes() == klms.ErrorFeedback.from_bytes(feedback.to_bytes()).to_bytes()
    feedback.compress(first, 0.3, key=SharedKey(1, 1, 3))
    again = klms.ErrorFeedback.from_bytes(feedback.to_bytes())
    messages = {one.compress(second, 0.3, key=key, rng=np.random.default_rng(4)) for one in (feedback, again)}
    assert len(messages) == 1
    assert klms.decompress(messages.pop(), key=key)["n"] == 1


def test_tensors_keep_their_types_and_their_rounding_is_fed_back():
    torch = pytest.importorskip("torch")
    feedback, total = klms.ErrorFeedback(), torch.zeros(500)
    update = torch.full((500,), 1.001, dtype=torch.float32)
    for _ in range(30):
        sent = klms.decompress(feedback.compress(update.to(torch.bfloat16), 8.0))
        assert sent.dtype == torch.bfloat16
        total += sent.float()
    torch.testing.assert_close(total / 30, torch.full((500,), 1.0), atol=1e-3, rtol=0)


def test_other_arrays_and_other_bytes_are_refused():
    feedback = klms.ErrorFeedback()
    feedback.compress({"a": np.ones(300, np.float32)})
    state = feedback.to_bytes()
    for other in ({"a": np.ones(301, np.float32)}, {"b": np.ones(300, np.float32)}):
        with pytest.raises(InvalidArgument, match="one ErrorFeedback for updates of the same arrays"):
            feedback.compress(other)
    with pytest.raises(TrainingDiverged):
        feedback.compress({"a": np.full(300, np.nan, np.float32)})
    assert feedback.to_bytes() == state
    for place in range(0, len(state), 7):
        damaged = bytearray(state)
        damaged[place] ^= 1
        with pytest.raises(KLMSError):
            klms.ErrorFeedback.from_bytes(bytes(damaged))
    with pytest.raises(KLMSError):
        klms.ErrorFeedback.from_bytes(klms.compress(np.ones(300)))
