import pytest

from klms.benchmarks import link


def test_rows_follow_from_measured_bytes_and_seconds():
    rows = list(link.run(parameters=[20_000], speeds=[1.0, 1e6], bits=1.0, clients=3))
    slow, fast = rows
    assert 1.9 < 8 * slow.client_bytes / slow.parameters < 2.3  # one bit in each direction
    assert slow.stock == pytest.approx(8 * 2 * 4 * slow.parameters / 1e6)
    seconds = slow.client_seconds + slow.server_seconds
    assert slow.coded == pytest.approx(8 * slow.client_bytes / 1e6 + seconds)
    assert slow.coded < slow.stock
    assert fast.coded > fast.stock  # no link is so fast that coding would save time on it


def test_both_take_equally_long_at_the_break_even():
    (row,) = link.run(parameters=[20_000], speeds=[10.0])
    seconds = row.client_seconds + row.server_seconds
    stock = 8 * 2 * 4 * row.parameters / (row.break_even * 1e6)
    coded = 8 * row.client_bytes / (row.break_even * 1e6) + seconds
    assert stock == pytest.approx(coded)
