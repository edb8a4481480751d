from klms.benchmarks import downlink


def test_rows_tell_what_each_way_costs():
    rows = list(downlink.run(d=20_000, clients=3, rate=0.5))
    assert [(row.scheme, row.downlink) for row in rows[::3]] == list(downlink.WAYS)
    bits = {(row.scheme, row.downlink): row.bits_per_parameter for row in rows if row.round == 3}
    assert 20 < bits["trellis", "snapshot"] < 33  # float32, of which the container deflates the high bytes
    assert 2.8 < bits["trellis", "auto"] < 3.2  # three clients of one bit
    assert 0.4 < bits["trellis", "coded"] < 0.6
    assert all(row.server_seconds > 0 and row.client_seconds > 0 for row in rows)
