import pytest

from klms.benchmarks import server


def test_rows_tell_bits_and_memory():
    rows = list(server.run(schemes=["eden", "mask-klms"], d=20_000, messages=(10, 20)))
    assert [(row.scheme, row.messages) for row in rows] == [
        ("eden", 10),
        ("eden", 20),
        ("mask-klms", 10),
        ("mask-klms", 20),
    ]
    for row in rows:
        assert row.parameters == 20_000
        assert row.ms_per_message == pytest.approx(1000 * row.seconds / row.messages)
        assert row.peak_models is None or row.peak_models > 0
    assert rows[0].bits_per_parameter == pytest.approx(1, abs=0.05)
    assert rows[2].bits_per_parameter < 0.1
