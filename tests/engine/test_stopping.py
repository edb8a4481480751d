from klms.engine.stopping import complete, rounds_left
from klms.methods.entry import ClientSettings
from tests.engine.test_ledger import RECORD


def test_a_run_is_complete_after_its_rounds_or_at_the_accuracy_that_suffices():
    forever = ClientSettings(rounds=2)
    assert not complete([], forever)
    assert [rounds_left([RECORD] * done, forever) for done in range(4)] == [2, 1, 0, 0]
    assert complete([RECORD], ClientSettings(rounds=2, stop_at=0.9))
    assert not complete([RECORD], ClientSettings(rounds=2, stop_at=0.91))
    undone = RECORD.model_copy(update={"undone": 1.0})  # the model that was that accurate was thrown away
    assert rounds_left([undone], ClientSettings(rounds=2, stop_at=0.9)) == 1
