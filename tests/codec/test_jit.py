from types import SimpleNamespace

from klms.numerics import jit


def compiling(function) -> SimpleNamespace:
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


def test_compiling_is_announced_once_and_to_terminals_only(monkeypatch, capsys):
    announcement = type(jit.announcement)()
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    announcement.on_start(compiling(jit.kernel))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    announcement.on_start(compiling(print))  # somebody else's kernel
    assert capsys.readouterr().err == ""
    announcement.on_start(compiling(jit.kernel))
    announcement.on_start(compiling(jit.kernel))
    assert capsys.readouterr().err.count("compiling") == 1
