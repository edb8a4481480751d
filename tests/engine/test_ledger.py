"""What the ledger declares of its fields, and when a run is complete."""

import pytest

from klms.engine.ledger import LedgerRecord, Shown, measured_by_clients

RECORD = LedgerRecord(round=1, uplink_bytes=10, bits_per_parameter=0.5, accuracy=0.9, epsilon=1.0, replies={"ok": 3})


def test_numbers_of_clients_are_taken_by_the_names_of_the_fields_they_may_report():
    reported = {"train_loss": 0.25, "kl_by_layer": [1, 2.5], "accuracy": 1.0, "uplink_bytes": 0, "strange": 1.0}
    assert measured_by_clients(reported, layers=2) == {"train_loss": 0.25, "kl_by_layer": [1.0, 2.5]}
    assert measured_by_clients({}, layers=2) == {}


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -1e31, [0.5], "0.5", None])
def test_a_number_that_cannot_be_true_is_not_taken(loss):
    assert measured_by_clients({"train_loss": loss}, layers=2) == {}


@pytest.mark.parametrize("kl", [[1.0], [1.0, 2.0, 3.0], [1.0, -2.0], [1.0, float("nan")], [1.0, None], [1.0, 1e7], 1.0])
def test_a_list_needs_one_possible_number_per_layer(kl):
    assert measured_by_clients({"kl_by_layer": kl}, layers=2) == {}


def test_a_field_is_shown_where_its_mark_says():
    assert RECORD.shown(Shown.IN_SUMMARY) == {"accuracy": 0.9, "epsilon": 1.0}
    assert RECORD.shown(Shown.IN_LOG) == {
        "downlink_bytes": 0,
        "bits_per_parameter": 0.5,
        "accuracy": 0.9,
        "replies": {"ok": 3},
    }
