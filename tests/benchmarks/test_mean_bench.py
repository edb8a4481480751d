import numpy as np
import pytest
from typer.testing import CliRunner

from klms.benchmarks import mean
from klms.cli import app
from klms.errors import InvalidArgument
from tests.support.commands import printed_json


def test_the_limit_is_that_of_gaussian_rate_distortion():
    assert mean.limit(1.0, 1) == pytest.approx(1 / 3)
    assert mean.limit(0.5, 10) == pytest.approx(0.1)


def test_errors_are_those_of_averages():
    """DRIVE at one bit has an error of pi / 2 - 1 for one vector, a fifth of it for the average of five."""
    for clients in (1, 5):
        (row,) = mean.run(vectors=["gaussian"], schemes=["drive"], clients=clients, d=1 << 15)
        assert row.error == pytest.approx((np.pi / 2 - 1) / clients, rel=0.05)
        assert row.error > row.limit
        assert 1 < row.bits_per_parameter < 1.01


def test_the_best_scheme_is_ours_at_every_rate():
    rows = list(mean.run(vectors=["lognormal"], schemes=["eden", "trellis", "qsgd"], clients=3, d=1 << 14))
    for rate in (0.1, 0.25, 0.5, 1.0, 2.0, 4.0):
        assert mean.best(rows, "lognormal", rate).scheme == "trellis"
    ours = [row.over_eden for row in rows if row.scheme == "trellis" and row.over_eden is not None]
    assert len(ours) >= 25
    assert max(ours) < 0.85
    assert all(abs(row.over_eden - 1) < 0.1 for row in rows if row.scheme == "eden" and row.bits_per_parameter > 0.1)
    with pytest.raises(InvalidArgument, match="no unbiased scheme"):
        mean.best(rows, "lognormal", 0.001)


def test_the_command_prints_draws_and_refuses_unknown_names(tmp_path):
    picture = tmp_path / "mean.png"
    arguments = ["bench", "mean", "--vectors", "gaussian", "--scheme", "terngrad", "--scheme", "topk", "--d", "5000"]
    shown = CliRunner().invoke(app, [*arguments, "--picture", str(picture)])
    assert shown.exit_code == 0, shown.output
    assert "terngrad" in shown.output
    assert "unbiased" in shown.output
    assert picture.read_bytes()[:4] == b"\x89PNG"
    rows = printed_json(*arguments)["rows"]
    assert {row["scheme"] for row in rows} == {"terngrad", "topk"}
    wrong = CliRunner().invoke(app, ["bench", "mean", "--scheme", "edne"])
    assert wrong.exit_code == 1
    assert "eden" in wrong.output
