from pathlib import Path

from klms.experiments import results

ROOT = Path(__file__).parents[2]


def test_the_document_is_made_of_the_committed_results():
    assert (ROOT / "docs" / "results.md").read_text() == results.document(ROOT / "results")
