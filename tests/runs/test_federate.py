"""`klms.federate` on models and data that klms has never seen."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import klms
from klms.cli import app
from klms.compressors.plain import Float32
from klms.engine.federation import Federation
from klms.errors import DataError, InvalidArgument, RunFolderError
from klms.learning.examples import Schedule, examples_from
from klms.learning.learner import Learner
from klms.learning.network import Network
from klms.methods.dense import Dense
from klms.runs.federate import print_round
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.support import models
from tests.support.models import three_classes
from tests.support.small_data import write_mnist

SETTINGS = {
    "fedpm-klms": {"optimizer": "adam", "lr": 0.1, "target": 4.0, "bits": 6},
    "qsgd-klms": {"lr": 0.1, "target": 4.0, "bits": 6, "bucket": 64},
    "eden": {"lr": 0.1},
}
COMMON = {"epochs": 2, "batch": 10, "evaluate_every": 1}


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind()


def three_clients(n: int = 60) -> list[tuple[np.ndarray, np.ndarray]]:
    return [three_classes(n, seed=client) for client in range(3)]


def train(kind: type[nn.Module], method: str = "eden", *, rounds: int = 3, **given: object) -> klms.Run:
    values = {"clients": three_clients(), "test": three_classes(90, seed=9)} | COMMON | SETTINGS[method] | given
    return klms.federate(seeded(kind), method=method, rounds=rounds, **values)


def digests(run: klms.Run) -> list[str]:
    return [record.digest for record in run.ledger]


def by_hand(module: nn.Module, data: tuple[np.ndarray, np.ndarray]) -> float:
    with torch.no_grad():
        scores = module(torch.from_numpy(data[0]))
    return float((scores.argmax(dim=1).numpy() == data[1]).mean())


@pytest.mark.parametrize("method", SETTINGS)
@pytest.mark.parametrize("kind", [models.WithDropout, models.WithBatchNorm])
def test_any_module_trains(kind, method):
    run = train(kind, method, rounds=8)
    assert [record.round for record in run.ledger] == list(range(1, 9))
    assert run.accuracy == run.ledger[-1].accuracy > 0.7  # chance is 0.33
    assert run.uplink_bytes == sum(record.uplink_bytes for record in run.ledger)
    assert run.downlink_bytes == sum(record.downlink_bytes for record in run.ledger) > 0
    assert run.total_bytes == run.uplink_bytes + run.downlink_bytes
    assert run.bits_per_parameter == pytest.approx(np.mean([record.bits_per_parameter for record in run.ledger]))
    assert run.bits_per_parameter < 8


@pytest.mark.parametrize("method", SETTINGS)
def test_a_recurrent_module_trains(method):
    run = train(
        models.WithGRU, method, rounds=12, epochs=4, optimizer="adam", **{"lr": 0.1 if "pm" in method else 0.01}
    )
    assert run.accuracy > 0.55
    assert isinstance(run.model(), models.WithGRU)


@pytest.mark.parametrize("kind", [models.WithDropout, models.WithGRU])
@pytest.mark.parametrize("tested", [True, False])
def test_the_trained_module_is_what_was_evaluated(kind, tested):
    test = three_classes(90, seed=9)
    run = train(kind, test=test if tested else None)
    module = run.model()
    assert type(module) is kind
    assert not module.training  # dropout is off, whatever was done last
    assert by_hand(module, test) == by_hand(run.model(), test)
    assert (run.accuracy == by_hand(module, test)) == tested
    assert all(parameter.requires_grad for parameter in module.parameters())
    start = torch.cat([parameter.flatten() for parameter in seeded(kind).parameters()])
    assert (torch.cat([parameter.flatten() for parameter in module.parameters()]) - start).norm() > 0.1


def test_a_run_starts_from_the_modules_own_parameters():
    module = seeded(models.WithDropout)
    federation = Federation.of(
        resolve("eden", given={"data": "own", "model": "own", "clients": 3}), module, three_clients()
    )
    wanted = torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).numpy()
    np.testing.assert_array_equal(federation.method.init().vector("weights"), wanted)


@pytest.mark.parametrize("kind", [models.WithDropout, models.WithBatchNorm, models.WithGRU])
def test_the_users_module_is_left_unchanged(kind):
    module = seeded(kind).eval()
    before = copy.deepcopy(module.state_dict())
    state = torch.random.get_rng_state()
    klms.federate(module, three_clients(), method="eden", rounds=2, test=three_classes(30), **COMMON)
    assert set(module.state_dict()) == set(before)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    assert not module.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_parameters_that_require_no_gradients_stay_constant():
    run = train(models.PartlyFrozen, rounds=4)
    module, start = run.model(), seeded(models.PartlyFrozen)
    assert run.federation.method.layout.names == ("second.weight", "second.bias")
    assert torch.equal(module.first.weight, start.first.weight)
    assert not torch.equal(module.second.weight, start.second.weight)
    assert [parameter.requires_grad for parameter in module.parameters()] == [False, False, True, True]
    assert run.accuracy == by_hand(module, three_classes(90, seed=9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_floating_point_types_train_in_float32(dtype):
    start = seeded(lambda: models.Mixed(dtype))
    run = klms.federate(start, three_clients(), method="fedavg", rounds=1, **COMMON, test=three_clients()[0])
    rounded = klms.federate(
        copy.deepcopy(start).float(), three_clients(), method="fedavg", rounds=1, **COMMON, test=three_clients()[0]
    )
    assert digests(run) == digests(rounded)
    assert run.metrics == rounded.metrics
    trained = run.model()
    before = start.state_dict()
    assert {name: value.dtype for name, value in trained.state_dict().items()} == {
        name: value.dtype for name, value in before.items()
    }
    assert torch.equal(trained.first.weight, start.first.weight)
    torch.testing.assert_close(trained.second.weight, rounded.model().second.weight.to(dtype), rtol=0, atol=0)
    assert trained(torch.zeros(2, 12, dtype=dtype)).dtype == dtype


def test_complex_parameters_are_refused_unless_they_are_frozen():
    with pytest.raises(InvalidArgument, match="parameter phase is complex, and only real parameters can be trained"):
        train(models.Rotated)
    frozen = seeded(models.Rotated)
    frozen.phase.requires_grad_(False)
    run = klms.federate(frozen, three_clients(), method="fedavg", rounds=1, **COMMON)
    assert run.model().phase.dtype == torch.complex64


class Listed(Sequence):
    """Pairs in a sequence of the user's own."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.pairs = list(zip(x, y, strict=True))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


FORMS = {
    "arrays": lambda x, y: (x, y),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "float64 and int32": lambda x, y: (x.astype(np.float64), y.astype(np.int32)),
    "labels of one byte": lambda x, y: (x, y.astype(np.uint8)),
    "tensors": lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
    "TensorDataset": lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
    "Dataset": models.Pairs,
    "sequence of pairs": Listed,
}


@pytest.mark.parametrize("form", FORMS)
def test_data_in_any_form_gives_the_same_messages(form):
    wanted = train(models.WithDropout, rounds=1)
    clients = [FORMS[form](*data) for data in three_clients()]
    run = train(models.WithDropout, rounds=1, clients=clients, test=FORMS[form](*three_classes(90, seed=9)))
    assert digests(run) == digests(wanted)
    assert run.accuracy == wanted.accuracy


def test_test_data_of_any_length_can_be_evaluated():
    """The last batch must not hold one example, of which a normalisation layer could make nothing."""
    assert train(models.WithBatchNorm, rounds=1, test=three_classes(501)).accuracy is not None


def test_workers_change_no_byte():
    one, two = (train(models.WithDropout, "fedpm-klms", rounds=2, workers=workers) for workers in (1, 2))
    assert digests(one) == digests(two)
    assert one.state.to_bytes() == two.state.to_bytes()
    assert one.accuracy == two.accuracy


def test_workers_need_a_loss_that_another_process_can_import():
    with pytest.raises(InvalidArgument, match=r"model, data and loss go to other processes.*use workers=1"):
        train(models.WithDropout, workers=2, loss=lambda output, y: functional.cross_entropy(output, y))


def test_a_line_per_round_says_what_went_up_and_down(capsys):
    run = train(models.WithDropout, rounds=2, progress=print_round)
    lines = capsys.readouterr().err.splitlines()
    up, down = run.ledger[1].uplink_bytes, run.ledger[1].downlink_bytes
    assert len(lines) == 2
    assert lines[1].endswith(f" bits per parameter up, bytes: {up:,} up, {down:,} down, {up + down:,} total")


def test_a_saved_run_is_a_run_folder(tmp_path):
    run = train(models.WithDropout, rounds=2)
    assert run.save(tmp_path / "runs" / "mine") == tmp_path / "runs" / "mine"
    folder = RunFolder(tmp_path / "runs" / "mine")
    assert folder.config() == run.config
    assert list(folder.records()) == run.ledger
    assert folder.rounds() == 2
    assert folder.state().to_bytes() == run.state.to_bytes()
    description = folder.description()
    assert [layer.size for layer in description.layers] == [480, 40, 120, 3]
    assert [sum(client) for client in description.split] == [60, 60, 60]
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page")])
    assert shown.exit_code == 0, shown.output
    assert "eden" in (tmp_path / "page" / "index.html").read_text()
    with pytest.raises(RunFolderError, match="already holds a run"):
        run.save(tmp_path / "runs" / "mine")


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("method", ["fedpm-klms", "eden"])
def test_an_interrupted_run_resumes_from_its_folder(tmp_path, method):
    whole = train(models.WithDropout, method, rounds=4)

    def interrupt(config, record) -> None:
        if record.round == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(models.WithDropout, method, rounds=4, folder=tmp_path / "run", progress=interrupt)
    assert RunFolder(tmp_path / "run").rounds() == 2
    seen = []
    run = train(
        models.WithDropout,
        method,
        rounds=4,
        folder=tmp_path / "run",
        progress=lambda _, record: seen.append(record.round),
    )
    assert seen == [3, 4]
    assert digests(run) == digests(whole)
    assert run.accuracy == whole.accuracy
    assert run.state.to_bytes() == whole.state.to_bytes()
    again = train(models.WithDropout, method, rounds=4, folder=tmp_path / "run", progress=pytest.fail)
    assert digests(again) == digests(whole)
    with pytest.raises(RunFolderError, match=r"other settings \(lr\)"):
        train(models.WithDropout, method, rounds=4, folder=tmp_path / "run", lr=0.2)


def test_a_finished_run_is_extended_with_the_same_bytes(tmp_path):
    whole = train(models.WithDropout, "eden", rounds=3)
    train(models.WithDropout, "eden", rounds=2, folder=tmp_path / "run")
    extended = train(models.WithDropout, "eden", rounds=3, folder=tmp_path / "run")
    assert digests(extended) == digests(whole)
    with pytest.raises(RunFolderError, match=r"other settings \(rounds\)"):
        train(models.WithDropout, "eden", rounds=1, folder=tmp_path / "run")


OTHERS = {
    "another model: the layer first.weight of 480 parameters instead of the layer weight of 36 parameters": {
        "kind": models.Plane
    },
    "other data: client 1 had 60 examples instead of 50": {
        "clients": [three_classes(60, 0), three_classes(50, 1), three_classes(60, 2)]
    },
    "other data: client 0 had other numbers of examples per class": {
        "clients": [three_classes(60, client) for client in (5, 6, 7)]
    },
    "other data: 90 test examples instead of 30": {"test": three_classes(30)},
}


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize("message", OTHERS)
def test_a_run_is_not_resumed_with_another_model_or_other_data(tmp_path, message, rounds):
    """An extension is refused as well, before anything in the folder changes."""
    train(models.WithDropout, rounds=2, folder=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunFolderError, match=f"was begun with {message}"):
        train(**{"kind": models.WithDropout, "rounds": rounds, "folder": tmp_path} | OTHERS[message])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert train(models.WithDropout, rounds=rounds, folder=tmp_path).rounds == rounds


def test_a_damaged_description_is_written_anew_by_the_resumed_run(tmp_path):
    train(models.WithDropout, rounds=1, folder=tmp_path)
    whole = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(whole.replace("first", "fist"))
    train(models.WithDropout, rounds=1, folder=tmp_path)
    assert (tmp_path / "run.json").read_text() == whole


def test_test_data_may_be_given_later_and_a_run_without_rounds_may_begin_anew(tmp_path):
    train(models.WithDropout, rounds=1, test=None, folder=tmp_path / "untested")
    assert train(models.WithDropout, rounds=2, folder=tmp_path / "untested").accuracy is not None
    with pytest.raises(InvalidArgument):
        train(models.Line, folder=tmp_path / "begun")
    assert RunFolder(tmp_path / "begun").description().layers
    assert train(models.WithDropout, folder=tmp_path / "begun").rounds == 3


def test_a_run_is_shown_in_one_line():
    run = train(models.WithDropout, "eden", rounds=1)
    assert repr(run).startswith("<Run of eden: 1 rounds, accuracy 0.")
    assert repr(run).endswith(f"{run.uplink_bytes:,} bytes up, {run.downlink_bytes:,} down>")


def regression(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(0, 1, (n, 12)).astype(np.float32)
    return x, (x @ np.linspace(-1, 1, 12)).astype(np.float32)


@pytest.mark.parametrize("method", ["eden", "qsgd-klms"])
def test_regression_with_a_loss_of_ones_own(method):
    clients = [regression(60, seed) for seed in range(3)]
    run = train(
        models.Line, method, rounds=10, clients=clients, test=regression(50, 9), loss=functional.mse_loss, lr=0.02
    )
    losses = [record.loss for record in run.ledger]
    assert losses[-1] < 0.3 * losses[0]
    assert run.accuracy is None
    assert run.ledger[-1].accuracy is None
    x, y = regression(50, 9)
    with torch.no_grad():
        by_hand = functional.mse_loss(run.model()(torch.from_numpy(x)), torch.from_numpy(y))
    assert losses[-1] == pytest.approx(float(by_hand), rel=1e-5)


def test_a_run_without_test_data_is_not_evaluated():
    run = train(models.WithDropout, rounds=2, test=None)
    assert run.accuracy is None
    assert not any(record.evaluated for record in run.ledger)


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(InvalidArgument, match="nothing to train"):
        train(nn.Flatten)


def test_a_model_that_changes_a_buffer_is_refused():
    with pytest.raises(InvalidArgument, match="its buffer calls"):
        train(models.Counting)


X, Y = three_classes(20)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:-1]), "20 inputs and 19 labels"),
        ((X[:0], Y[:0]), "0 inputs"),
        ((X, np.array(["a"] * 20)), "not numeric"),
        (X, "pair"),
        (7, "int cannot be read"),
        ("data.csv", "str cannot be read"),
        (({"x": X}, Y[:-1]), "20 inputs and 19 labels"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "cannot be read"),
    ],
)
def test_data_that_cannot_be_read_is_refused(data, message):
    with pytest.raises(DataError, match=message):
        train(models.WithDropout, clients=[(X, Y), data])
    with pytest.raises(DataError, match=message):
        train(models.WithDropout, test=data)


def test_settings_are_checked():
    with pytest.raises(InvalidArgument, match="did you mean 'eden'"):
        klms.federate(seeded(models.WithDropout), three_clients(), method="edne")
    with pytest.raises(InvalidArgument, match="there is no setting 'learning_rate'; did you mean 'lr'"):
        train(models.WithDropout, learning_rate=0.1)
    with pytest.raises(InvalidArgument, match="down_rate needs downlink coded, not auto"):
        train(models.WithDropout, down_rate=1.0)
    with pytest.raises(InvalidArgument, match="data themselves: images, width would have no effect"):
        train(models.WithDropout, width=0.5, images=30)
    with pytest.raises(InvalidArgument, match="rate"):
        train(models.WithDropout, rate=9)


@dataclass(frozen=True)
class FedProx(Dense):
    """Stays near the global model (Li et al., 2020): a penalty is all that it adds to FedAvg."""

    mu: float = 1.0

    def penalty(self, parameters: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return self.mu / 2 * ((parameters - start) ** 2).sum()


def test_a_penalty_shortens_the_update():
    learner = Learner(Network.of(seeded(models.WithDropout)))
    data = examples_from(three_classes(60))
    arguments = (learner, 1, 1, Float32(learner.layout), Schedule(5, 10, 0.1, "sgd"), 1.0)
    lengths = []
    for method in (Dense(*arguments), FedProx(*arguments, mu=0.0), FedProx(*arguments, mu=1.0)):
        upload = method.client_update(method.init(), 0, data, np.random.default_rng(0))
        lengths.append(float(np.linalg.norm(method.decode(method.init(), 0, upload.message).vector)))
    assert lengths[0] == lengths[1] > 1.3 * lengths[2] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_told_before_data_is_read(tmp_path):
    class Unread(Sequence):
        __getitem__ = __len__ = pytest.fail

    message = "device 'cuda' is not available here .*: choose cpu, or auto"
    with pytest.raises(InvalidArgument, match=message):
        klms.federate(seeded(models.WithDropout), [Unread()], device="cuda")
    with pytest.raises(InvalidArgument, match=message):  # before it is noticed that the folder holds no data
        Federation.create(resolve("fedavg", given={"device": "cuda", "data_dir": tmp_path}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"width": 1e4}, r"lenet at width 10000 has .* parameters, but a message holds at most 4,294,967,295"),
        ({"width": 1e300}, "there is no lenet for inputs of shape .* at width 1e\\+300"),
        ({"model": "lstm", "width": 1e-3}, "there is no lstm .*a layer would have no parameters"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_before_it_is_allocated(tmp_path, given, message):
    config = resolve("fedavg", given={"data_dir": write_mnist(tmp_path), **given})
    with pytest.raises(InvalidArgument, match=message):
        Federation.create(config)
