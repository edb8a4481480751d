"""`klms.federate` on models and data as other libraries have them: dictionaries, outputs with names, norms."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset
from typer.testing import CliRunner

import klms
from klms.cli import app
from klms.errors import DataError, InvalidArgument
from klms.learning.examples import Examples, examples_from, mixed_batches
from klms.runs import export
from tests.support import outputs
from tests.support.models import Line, Plane, WithBatchNorm, WithDropout, three_classes

TEXTS = [outputs.texts(40, seed=client) for client in range(3)]
SHORT = {"method": "fedavg", "rounds": 1, "epochs": 1, "batch": 16}


def seeded(make, *arguments) -> nn.Module:
    torch.manual_seed(1)
    return make(*arguments)


def digests(run: klms.Run) -> list[str]:
    return [record.digest for record in run.ledger]


def test_a_classifier_of_hugging_face_trains():
    run = klms.federate(
        seeded(outputs.TinyBert),
        TEXTS,
        method="eden",
        rate=2,
        rounds=5,
        epochs=2,
        lr=0.01,
        batch=10,
        test=outputs.texts(60, seed=9),
    )
    assert run.accuracy > 0.9
    assert isinstance(run.model(), outputs.TinyBert)


class Items(Dataset):
    """A data set whose items are dictionaries of tensors, with further names for the labels."""

    def __init__(self, items: list[dict], label: str) -> None:
        self.items = items
        self.label = label

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict:
        item = {name: torch.tensor(value) for name, value in self.items[index].items()}
        item[self.label] = item.pop("label")
        return item


def columns(items: list[dict]) -> dict[str, np.ndarray]:
    return {name: np.array([item[name] for item in items]) for name in items[0]}


def pair(items: list[dict]) -> tuple:
    inputs = columns(items)
    return inputs, inputs.pop("label")


def pairs(items: list[dict]) -> list:
    return [({name: value for name, value in item.items() if name != "label"}, item["label"]) for item in items]


FORMS = {
    "label": lambda items: Items(items, "label"),
    "labels": lambda items: Items(items, "labels"),
    "columns": columns,
    "a pair with named inputs": pair,
    "pairs with named inputs": pairs,
}


@pytest.mark.parametrize("form", FORMS)
def test_named_inputs_in_any_form_give_the_same_messages(form):
    wanted = klms.federate(seeded(outputs.TinyBert), TEXTS, **SHORT, test=TEXTS[0])
    given = [FORMS[form](items) for items in TEXTS]
    run = klms.federate(seeded(outputs.TinyBert), given, **SHORT, test=given[0])
    assert digests(run) == digests(wanted)
    assert run.accuracy == wanted.accuracy is not None


def test_a_model_that_takes_labels_computes_its_own_loss():
    """The loss of a Hugging Face classifier is the cross-entropy that klms takes by default."""
    wanted = klms.federate(seeded(outputs.TinyBert), TEXTS, **SHORT)
    run = klms.federate(seeded(outputs.TinyBert), TEXTS, **SHORT, loss=lambda output, y: output.loss)
    assert digests(run) == digests(wanted)
    items = [{"input_ids": [1, 2, 3, 4], "labels": [0, 1, 2, 0]}, {"input_ids": [5, 6, 7, 8], "labels": [1, 1, 0, 2]}]
    with pytest.raises(InvalidArgument, match=r"\(2, 4, 3\) for labels of shape \(2, 4\).*output.loss"):
        klms.federate(seeded(outputs.Tagger), [items], **SHORT)
    run = klms.federate(
        seeded(outputs.Tagger), [items], **SHORT, test=items, loss=lambda output, y: output.loss, lr=0.1
    )
    assert run.accuracy is None
    assert run.ledger[-1].loss < run.ledger[-1].train_loss


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"input_ids": [1, 2]}], "none of its columns input_ids is called labels or label"),
        ([{"input_ids": [1, 2], "label": 0}, {"input_ids": [1], "label": 0}], r"\(1,\) and \(2,\).*padding"),
        ([{"text": "good", "label": 0}], "column 'text': dtype .* is not numeric; leave it out"),
        ([], "it is empty"),
        ({"input_ids": np.ones((3, 2)), "labels": np.ones(2)}, "3 inputs and 2 labels"),
    ],
)
def test_named_inputs_that_cannot_be_read_are_refused(data, message):
    with pytest.raises(DataError, match=message):
        examples_from(data)


def test_truth_values_among_named_inputs_stay_what_they_are():
    read = examples_from(({"mask": np.array([[True, False]]), "x": np.array([[1.5]])}, [0]))
    assert read.x["mask"].dtype == np.bool_
    assert read.x["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        (np.ones((4, 28, 28), np.uint8), np.uint8),
        (np.ones((4, 3, 8, 8), np.uint8), np.uint8),
        (np.ones((4, 12), np.uint8), np.float32),
        (np.ones(4, np.uint8), np.float32),
        ({"pixels": np.ones((4, 3, 8, 8), np.uint8)}, np.uint8),
        ({"mask": np.ones((4, 6, 6), np.uint8)}, np.int64),
        ({"mask": np.ones((4, 6), np.uint8)}, np.int64),
    ],
)
def test_only_bytes_in_the_shape_of_images_are_images(inputs, wanted):
    read = examples_from((inputs, [0, 1, 2, 0])).x
    array = next(iter(read.values())) if isinstance(inputs, dict) else read
    assert array.dtype == wanted
    assert array.min() == array.max() == 1


def test_a_mask_of_bytes_is_a_mask():
    wanted = klms.federate(seeded(outputs.TinyBert), TEXTS, **SHORT, test=TEXTS[0])
    as_bytes = [columns(items) for items in TEXTS]
    for given in as_bytes:
        given["attention_mask"] = given["attention_mask"].astype(np.uint8)
    run = klms.federate(seeded(outputs.TinyBert), as_bytes, **SHORT, test=as_bytes[0])
    assert digests(run) == digests(wanted)
    assert run.metrics == wanted.metrics


def test_bytes_that_are_no_images_keep_their_values():
    x, y = three_classes(30)
    x = np.clip(20 * x + 100, 0, 255).astype(np.uint8)
    run = klms.federate(seeded(Plane), [(x, y)], **SHORT, test=(x, y))
    wanted = klms.federate(seeded(Plane), [(x.astype(np.float32), y)], **SHORT, test=(x.astype(np.float32), y))
    assert digests(run) == digests(wanted)
    assert run.metrics == wanted.metrics


KINDS = (
    outputs.InTuple,
    outputs.AfterItsLoss,
    outputs.InDictionary,
    outputs.UnderAnotherName,
    outputs.InNamedTuple,
)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_found_in_what_a_model_returns(kind):
    clients = [three_classes(30, seed) for seed in range(2)]
    wanted = klms.federate(seeded(nn.Linear, 12, 3), clients, **SHORT, test=clients[0])
    run = klms.federate(seeded(kind, 12, 3), clients, **SHORT, test=clients[0])
    assert digests(run) == digests(wanted)
    assert run.accuracy == wanted.accuracy is not None


def test_a_loss_gets_what_the_model_returns():
    seen = set()

    def loss(output, y):
        seen.add(type(output))
        return functional.mse_loss(output["logits"], functional.one_hot(y, 3).float())

    clients = [three_classes(30)]
    run = klms.federate(seeded(outputs.InDictionary, 12, 3), clients, **SHORT, test=clients[0], loss=loss)
    assert seen == {dict}
    assert run.accuracy is not None  # of its logits
    x, _ = three_classes(30)
    run = klms.federate(
        seeded(outputs.InDictionary, 12, 1),
        [(x, x[:, :1])],
        **SHORT,
        test=(x, x[:, :1]),
        loss=lambda output, y: functional.mse_loss(output["logits"], y),
        lr=0.01,
    )
    with torch.no_grad():
        by_hand = functional.mse_loss(run.model()(torch.from_numpy(x))["logits"], torch.from_numpy(x[:, :1]))
    assert run.ledger[-1].loss == pytest.approx(float(by_hand), rel=1e-5)


def test_a_model_without_scores_is_refused():
    with pytest.raises(
        InvalidArgument, match=r"returns a dict without a tensor of scores for 16 examples.*give a loss"
    ):
        klms.federate(seeded(outputs.Nowhere, 12, 3), [three_classes(30)], **SHORT)


@pytest.mark.parametrize("where", ["clients", "test"])
def test_targets_that_are_not_classes_need_a_loss(where):
    x, y = three_classes(30)
    numbers, classes = (x, x[:, 0]), (x, y)
    given = {"clients": [classes], "test": classes} | {where: [numbers] if where == "clients" else numbers}
    with pytest.raises(InvalidArgument, match=r"float32, which are not classes: give a loss.*mse_loss"):
        klms.federate(seeded(WithDropout), **given, **SHORT)
    assert klms.federate(seeded(Line), [numbers], **SHORT, loss=functional.mse_loss).ledger[0].train_loss > 0


NOT_CLASSES = {
    "one logit": (1, [0, 1], lambda scores, y: functional.binary_cross_entropy_with_logits(scores[:, 0], y.float())),
    "one logit of zeros": (
        1,
        [0],
        lambda scores, y: functional.binary_cross_entropy_with_logits(scores[:, 0], 0.0 * y),
    ),
    "ordinal": (
        2,
        [0, 1, 2],
        lambda scores, y: functional.binary_cross_entropy_with_logits(scores, (y[:, None] > torch.arange(2)).float()),
    ),
    "counts": (1, [0, 3, 7], lambda scores, y: functional.poisson_nll_loss(scores[:, 0], y.float())),
    "hinge": (1, [-1, 1], lambda scores, y: functional.relu(1 - scores[:, 0] * y).mean()),
    "negative targets": (3, [-2, -1], lambda scores, y: functional.mse_loss(scores.sum(1), y.float())),
}


@pytest.mark.parametrize("name", NOT_CLASSES)
def test_integers_that_are_not_classes_are_evaluated_by_the_loss(name):
    scores, labels, loss = NOT_CLASSES[name]
    x, y = three_classes(30)
    data = (x, np.resize(labels, y.shape))
    run = klms.federate(seeded(nn.Linear, 12, scores), [data], **SHORT, test=data, loss=loss)
    with torch.no_grad():
        by_hand = float(loss(run.model()(torch.from_numpy(x)), torch.from_numpy(data[1])))
    assert run.metrics == {"loss": pytest.approx(by_hand, rel=1e-5)}


@pytest.mark.parametrize("loss", [None, functional.cross_entropy])
def test_labels_to_ignore_do_not_count_in_testing(loss):
    x, y = three_classes(60)
    some = np.arange(60) % 3 > 0
    ignored = (x, np.where(some, y, -100))
    run = klms.federate(seeded(nn.Linear, 12, 3), [ignored], **SHORT, test=ignored, loss=loss)
    wanted = klms.federate(seeded(nn.Linear, 12, 3), [ignored], **SHORT, test=(x[some], y[some]), loss=loss)
    assert run.metrics == pytest.approx(wanted.metrics)
    assert run.accuracy is not None


@pytest.mark.parametrize("where", ["clients", "test"])
@pytest.mark.parametrize(
    ("label", "message"),
    [
        (-1, "label -1 is not a class: classes are numbered from 0, and -100 marks labels to ignore"),
        (3, "label 3 is not a class: the model has scores for 3 classes"),
    ],
)
def test_labels_that_are_no_classes_are_refused(label, message, where):
    x, y = three_classes(30)
    wrong = (x, np.where(np.arange(30) == 4, label, y))
    given = {"clients": [(x, y)], "test": (x, y)} | {where: [wrong] if where == "clients" else wrong}
    with pytest.raises(InvalidArgument, match=message):
        klms.federate(seeded(nn.Linear, 12, 3), **given, **SHORT)


def test_labels_that_are_all_ignored_are_refused():
    x, y = three_classes(30)
    with pytest.raises(InvalidArgument, match="all labels are -100, which the loss ignores"):
        klms.federate(seeded(nn.Linear, 12, 3), [(x, np.full_like(y, -100))], **SHORT)


def test_a_batch_of_one_example_trains():
    run = klms.federate(seeded(WithDropout), [three_classes(30)], method="fedavg", rounds=2, batch=1)
    assert run.ledger[1].train_loss < run.ledger[0].train_loss


UNEVEN = [outputs.patches(60, 0, (0,)), outputs.patches(40, 1, (1, 2)), outputs.patches(50, 2)]


@pytest.mark.parametrize("method", ["fedavg", "fedpm-klms"])
def test_norms_of_the_trained_module_have_the_statistics_of_the_clients(method):
    """In evaluation mode it predicts as it was tested, for one example as for many, and its state loads strictly."""
    test = outputs.patches(300, 9)
    run = klms.federate(seeded(outputs.SmallResNet), UNEVEN, method=method, rounds=4, batch=20, test=test)
    loaded = outputs.SmallResNet()
    loaded.load_state_dict(run.model().state_dict(), strict=True)
    loaded.eval()
    network, vector = run.federation.method.learner.network, run.federation.method.parameters(run.state)
    network.set_mode(training=False)
    x = torch.from_numpy(test[0])
    with torch.no_grad():
        tested = network(network.tensor(vector), x)
        together = loaded(x)
        alone = torch.cat([loaded(one[None]) for one in x[:20]])
    torch.testing.assert_close(together[:20], alone, rtol=1e-3, atol=1e-4)
    assert float((tested.argmax(1) == together.argmax(1)).float().mean()) > 0.95
    assert float((tested - together).square().mean() / tested.var()) < 0.03
    assert loaded.blocks[0].bn2.momentum == 0.3
    assert all(part.track_running_stats for part in loaded.modules() if isinstance(part, nn.BatchNorm2d))


def test_statistics_are_measured_without_changing_anything_else():
    run = klms.federate(seeded(WithBatchNorm), [three_classes(60)], **SHORT)
    first, second = run.model(), run.model()
    assert not first.training
    assert not any(part.training for part in first.modules())
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())
    start = seeded(WithBatchNorm)
    assert type(first) is WithBatchNorm
    assert first.state_dict().keys() == start.state_dict().keys()
    with torch.no_grad():
        inside = first.first(torch.from_numpy(three_classes(60)[0]))
    torch.testing.assert_close(first.norm.running_mean, inside.mean(0))
    torch.testing.assert_close(first.norm.running_var, inside.var(0))


def test_mixed_batches_have_a_share_of_every_part():
    parts = [Examples(np.full(n, n), np.full(n, n)) for n in (600, 300, 100)]
    batches = list(mixed_batches(parts, 500))
    assert [len(batch) for batch in batches] == [500, 500]
    assert [np.unique(batch.y, return_counts=True)[1].tolist() for batch in batches] == 2 * [[50, 150, 300]]
    alone = [Examples({"x": np.array([n])}, np.array([n])) for n in range(1000)]
    batches = list(mixed_batches(alone, 500))
    assert [len(batch) for batch in batches] == [500, 500]
    assert sorted(np.concatenate([batch.x["x"] for batch in batches])) == list(range(1000))


def test_a_model_of_ones_own_is_exported_in_python(tmp_path):
    folder = tmp_path / "run"
    clients = [three_classes(60, seed) for seed in range(2)]
    run = klms.federate(seeded(WithBatchNorm), clients, method="fedpm-klms", rounds=1, folder=folder)
    shown = CliRunner().invoke(app, ["export", str(folder)])
    assert shown.exit_code == 1
    assert f'klms.runs.export.own_model("{folder}", model)' in shown.output
    assert not (folder / "model.klms").exists()
    with pytest.raises(InvalidArgument, match="give clients="):
        export.own_model(str(folder), WithBatchNorm())
    with pytest.raises(InvalidArgument, match="another model"):
        export.own_model(folder, WithDropout())
    found = export.own_model(folder, WithBatchNorm(), clients).state_dict()
    assert all(torch.equal(value, found[name]) for name, value in run.model().state_dict().items())


def test_a_regression_is_exported_without_its_loss(tmp_path):
    x, _ = three_classes(30)
    run = klms.federate(Line(), [(x, x[:, 0])], **SHORT, loss=functional.mse_loss, folder=tmp_path / "run")
    found = export.own_model(tmp_path / "run", Line())
    assert torch.equal(found.layer.weight, run.model().layer.weight)


@pytest.mark.parametrize("method", ["fedavg", "marina", "sgld"])
def test_the_ledger_has_the_loss_of_local_training(method):
    """With one batch per client it is the loss of the model that the round starts from."""
    clients = [three_classes(60, seed) for seed in range(3)]
    given = {"epochs": 1} if method != "sgld" else {}
    run = klms.federate(seeded(Plane), clients, method=method, rounds=2, batch=60, **given)
    module = seeded(Plane)
    losses = [functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).item() for x, y in clients]
    assert run.ledger[0].train_loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert run.ledger[1].train_loss < run.ledger[0].train_loss
