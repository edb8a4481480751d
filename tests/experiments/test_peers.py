from klms.experiments import peers

ROW = {
    "vectors": "lenet",
    "peer": "SZ3",
    "setting": "bound 1",
    "clients": 10,
    "parameters": 1000,
    "bytes": 125.0,
    "bits_per_parameter": 1.0,
    "error": 0.5,
    "average_error": 0.4,
    "encode_ns": 30.0,
    "decode_ns": 10.0,
    "trellis": {"bytes": 124.0, "error": 0.2, "average_error": 0.1, "encode_ns": 50.0, "decode_ns": 5.0},
}
BEYOND = {**ROW, "setting": "float16", "bits_per_parameter": 16.0, "average_error": 1e-8, "trellis": None}


def test_a_cell_has_the_peers_error_and_ours_relative_to_it():
    _, _, coded, lossless = peers.errors([ROW, BEYOND]).splitlines()
    assert coded == "| SZ3 | bound 1 | 1.00 bits: 0.4 (x 0.25) |"
    assert lossless == "| SZ3 | float16 | 16.00 bits: 1e-08 |"


def test_times_are_medians_over_kinds_of_vectors():
    slow = {**ROW, "vectors": "lstm", "encode_ns": 50.0}
    _, _, line, other = peers.times([ROW, slow, BEYOND]).splitlines()
    assert line == "| SZ3 | bound 1 | 40 | 10 | 50 | 5 |"
    assert other == "| SZ3 | float16 | 30 | 10 |  |  |"


def test_the_picture_is_drawn(tmp_path):
    peers.draw({"rows": [ROW, BEYOND]}, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").stat().st_size > 10_000
