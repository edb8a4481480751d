"""`klms encode` and `klms decode` on files as people have them."""

import json
import re
import struct
import subprocess
import sys
import zlib
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

import klms
from klms.cli import app, tensors
from klms.cli.live import Live
from klms.compressors.arrays import bfloat16_of
from klms.errors import CorruptMessage, DataError, InvalidArgument
from klms.frame import Frame, Kind
from klms.tensor_files import decode, encode
from klms.tensor_files.formats import open_tensors
from tests.tensor_files.adapters import METADATA, adapter, write

runner = CliRunner()


def tensors_in(path):
    with open_tensors(path) as opened:
        read = {name: source.floats(0, int(np.prod(source.shape))) for name, source in opened.sources.items()}
        about = {name: (source.dtype, source.shape) for name, source in opened.sources.items()}
    return read, about, opened.metadata


def error(path, other) -> float:
    read, expected = tensors_in(path)[0], tensors_in(other)[0]
    off = sum(float(np.square(read[name] - array).sum()) for name, array in expected.items())
    return off / sum(float(np.square(array).sum()) for array in expected.values())


@pytest.mark.parametrize("bfloat16", [True, False])
def test_an_adapter_keeps_names_types_shapes_and_metadata(bfloat16, tmp_path):
    path = write(tmp_path / "adapter_model.safetensors", adapter(bfloat16=bfloat16) | {"steps": np.arange(3)})
    done = runner.invoke(app, ["encode", str(path), "--bits", "2", "-o", str(tmp_path / "a.klms")])
    assert done.exit_code == 0, done.output
    line = done.output.strip()
    assert re.search(r"a.klms: 16,384 parameters in [\d,]+ bytes, [\d.]+ bits per parameter, [\d.]+ x smaller", line)
    assert re.search(r"; relative squared error 0\.0\d+; \d+\.\d s$", line)
    message = (tmp_path / "a.klms").read_bytes()
    assert len(message) < 16384 * 2 / 8 + 40

    restored = tmp_path / "restored.safetensors"
    command = [sys.executable, "-m", "klms", "decode", str(tmp_path / "a.klms"), "-o", str(restored)]
    other = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert other.returncode == 0, other.stderr
    assert tensors_in(restored)[1:] == tensors_in(path)[1:]
    assert tensors_in(restored)[2] == METADATA
    assert tensors_in(restored)[0]["steps"].tolist() == [0, 1, 2]
    told = float(re.search(r"squared error ([\d.e-]+)", line)[1])
    assert 0 < told < 0.2
    assert klms.inspect(message).parameters == 16384 + 3


def test_a_difference_of_checkpoints(tmp_path):
    base = adapter(bfloat16=True, width=512)
    rng = np.random.default_rng(1)
    floats = {name: (array.view(np.uint16).astype(np.uint32) << 16).view("f4") for name, array in base.items()}
    new = {name: bfloat16_of(a + rng.normal(0, 0.01, a.shape).astype("f4")) for name, a in floats.items()}
    old_path, new_path = write(tmp_path / "old.safetensors", base), write(tmp_path / "new.safetensors", new)
    message, restored = tmp_path / "new.safetensors.klms", tmp_path / "restored.safetensors"
    done = runner.invoke(app, ["encode", str(new_path), "--base", str(old_path), "--bits", "2"])
    assert done.exit_code == 0, done.output
    assert "relative squared error of the difference 0." in done.output

    refused = runner.invoke(app, ["decode", str(message), "-o", str(restored)])
    assert refused.exit_code == 1
    assert "is a difference: name the file that it was made from with --base" in refused.output
    refused = runner.invoke(app, ["decode", str(message), "-o", str(restored), "--base", str(new_path)])
    assert "was made from a base other than" in refused.output
    assert not restored.exists()

    done = runner.invoke(app, ["decode", str(message), "-o", str(restored), "--base", str(old_path)])
    assert done.exit_code == 0, done.output
    assert tensors_in(restored)[1:] == tensors_in(new_path)[1:]
    assert error(restored, new_path) < 0.03 < error(old_path, new_path)


@pytest.mark.parametrize(("source", "target"), [(".npz", ".safetensors"), (".safetensors", ".npz"), (".npz", ".npz")])
def test_formats_can_be_changed(source, target, tmp_path):
    tensors = adapter(bfloat16=source == ".safetensors") | {"mask": np.array([True, False])}
    path = tmp_path / f"x{source}"
    if source == ".npz":
        np.savez(path, **tensors)
    else:
        write(path, tensors)
    encode(path, tmp_path / "m.klms", 8.0)
    assert decode(tmp_path / "m.klms", tmp_path / f"y{target}") == len(tensors)
    read, about, _ = tensors_in(tmp_path / f"y{target}")
    assert read["mask"].tolist() == [1, 0]
    assert error(tmp_path / f"y{target}", path) < 1e-3
    if target == ".npz":
        assert {dtype for dtype, _ in about.values()} == {np.dtype("f4"), np.dtype("?")}  # NumPy has no bfloat16


def test_one_array(tmp_path):
    array = np.random.default_rng(0).standard_normal((30, 40))
    np.save(tmp_path / "x.npy", array)
    assert runner.invoke(app, ["encode", str(tmp_path / "x.npy"), "--bits", "8"]).exit_code == 0
    assert runner.invoke(app, ["decode", str(tmp_path / "x.npy.klms"), "--force"]).exit_code == 0
    read = np.load(tmp_path / "x.npy")
    assert read.dtype == np.float64
    np.testing.assert_allclose(read, array, atol=0.1)
    decode(tmp_path / "x.npy.klms", tmp_path / "x.safetensors")
    assert list(tensors_in(tmp_path / "x.safetensors")[0]) == ["array"]


def test_messages_of_the_library_are_decoded(tmp_path):
    update = {"a": np.ones((20, 30), np.float32), "n": np.array([7])}
    with (tmp_path / "m.klms").open("wb") as file:
        klms.compress_to(file, update, 8.0)
    decode(tmp_path / "m.klms", tmp_path / "x.npz")
    assert np.load(tmp_path / "x.npz")["n"].tolist() == [7]
    (tmp_path / "keyed.klms").write_bytes(klms.compress(update, key=klms.SharedKey(1, 2, 3)))
    shown = runner.invoke(app, ["decode", str(tmp_path / "keyed.klms"), "-o", str(tmp_path / "y.npz")])
    assert "keyed.klms: the message does not carry its key" in shown.output


def test_paths_may_be_text(tmp_path):
    path = write(tmp_path / "x.safetensors", adapter())
    assert encode(str(path), str(tmp_path / "m.klms"), 0.1, base=str(path)).tensors == len(adapter())
    assert decode(str(tmp_path / "m.klms"), str(tmp_path / "y.safetensors"), base=str(path)) == len(adapter())
    with pytest.raises(InvalidArgument, match="the path of a file is expected, got int"):
        encode(3, tmp_path / "m.klms")


def test_a_difference_is_not_mistaken_for_the_tensors(tmp_path):
    path = write(tmp_path / "x.safetensors", adapter())
    encode(path, tmp_path / "m.klms", 0.1, base=path)
    with pytest.raises(InvalidArgument, match=r"the difference from another file: .* `klms decode --base`"):
        klms.decompress((tmp_path / "m.klms").read_bytes())
    with (tmp_path / "m.klms").open("rb") as file, pytest.raises(InvalidArgument, match="difference"):
        klms.decompress_from(file, lambda *part: None)


def test_a_message_never_has_more_error_than_zeros_unless_it_is_unbiased(tmp_path):
    path = write(tmp_path / "x.safetensors", adapter())
    errors = [encode(path, tmp_path / "m.klms", 0.2, unbiased=unbiased).relative_error for unbiased in (False, True)]
    assert errors[0] < 1 < 2 < errors[1]
    decode(tmp_path / "m.klms", tmp_path / "y.safetensors")
    assert error(tmp_path / "y.safetensors", path) == pytest.approx(errors[1], rel=0.01)


def test_the_budget_is_kept(tmp_path):
    path = write(tmp_path / "x.safetensors", adapter())
    done = runner.invoke(app, ["encode", str(path), "--budget", "1500"])
    assert done.exit_code == 0, done.output
    assert 1300 < (tmp_path / "x.safetensors.klms").stat().st_size <= 1500


def test_nothing_is_overwritten_or_left_behind(tmp_path):
    path = write(tmp_path / "x.safetensors", adapter())
    content = path.read_bytes()
    (tmp_path / "m.klms").write_bytes(b"precious")
    shown = runner.invoke(app, ["encode", str(path), "-o", str(tmp_path / "m.klms")])
    assert shown.exit_code == 1
    assert "m.klms exists: name another file with --out, or overwrite it with --force" in shown.output
    shown = runner.invoke(app, ["encode", str(path), "-o", str(path), "--force"])
    assert "would overwrite what is read" in shown.output
    shown = runner.invoke(app, ["encode", str(path), "-o", str(tmp_path / "nowhere" / "m")])
    assert "there is no folder" in shown.output
    write(tmp_path / "bad.safetensors", {"a": np.full(300, np.inf)})
    shown = runner.invoke(app, ["encode", str(tmp_path / "bad.safetensors"), "-o", str(tmp_path / "m.klms"), "--force"])
    assert "not finite" in shown.output
    assert (tmp_path / "m.klms").read_bytes() == b"precious"
    assert path.read_bytes() == content
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bad.safetensors", "m.klms", "x.safetensors"]


def test_a_message_may_be_named_like_the_file_to_write(tmp_path):
    path = write(tmp_path / "x.safetensors", adapter())
    message = tmp_path / "y.safetensors.new"
    (tmp_path / "m.klms.new").write_bytes(b"precious")
    encode(path, tmp_path / "m.klms")
    encode(path, message)
    decode(message, tmp_path / "y.safetensors")
    assert klms.inspect(message.read_bytes()).parameters == 16384
    assert (tmp_path / "m.klms.new").read_bytes() == b"precious"


@pytest.mark.parametrize("metadata", [{"note": "\ud800"}, {"\ud800": "note"}, {"note": 1}, [], None])
def test_metadata_that_no_file_can_hold_is_damage(metadata, tmp_path):
    described = json.dumps({"names": [], "types": [], "shapes": [], "meta": {"metadata": metadata}}).encode()
    packed = zlib.compress(described)
    frame = Frame(Kind.UPDATE, 0, 1, bytes(8), struct.pack("<BI", 1, len(packed)) + packed)
    (tmp_path / "m.klms").write_bytes(frame.to_bytes())
    with pytest.raises(CorruptMessage, match="the metadata of the message is not a mapping from names to text"):
        decode(tmp_path / "m.klms", tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()


def test_an_array_with_the_name_of_the_metadata_does_not_become_safetensors(tmp_path):
    np.savez(tmp_path / "x.npz", __metadata__=np.ones(5, np.float32), w=np.ones(5, np.float32))
    encode(tmp_path / "x.npz", tmp_path / "m.klms", 8.0)
    with pytest.raises(DataError, match=r"cannot hold an array named '__metadata__': write a \.npz file"):
        decode(tmp_path / "m.klms", tmp_path / "y.safetensors")
    assert not (tmp_path / "y.safetensors").exists()
    assert decode(tmp_path / "m.klms", tmp_path / "y.npz") == 2


@pytest.mark.parametrize("threads", [-1, 0, "2", 1.5])
def test_threads_are_counted_from_one(threads, tmp_path):
    path = write(tmp_path / "x.safetensors", adapter())
    encode(path, tmp_path / "m.klms")
    with pytest.raises(InvalidArgument, match="threads must be"):
        encode(path, tmp_path / "n.klms", threads=threads)
    with pytest.raises(InvalidArgument, match="threads must be"):
        decode(tmp_path / "m.klms", tmp_path / "y.safetensors", threads=threads)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["m.klms", "x.safetensors"]


class Shown(Live):
    """Notes what is shown."""

    texts: ClassVar[list[str]] = []

    def show(self, text, done=0, total=None, **where):
        self.texts.append(text)


@pytest.mark.parametrize("patience", [0.0, 1000.0])
def test_progress_is_shown_when_it_takes_long(patience, tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "Live", Shown)
    monkeypatch.setattr(tensors, "_PATIENCE", patience)
    Shown.texts.clear()
    path = write(tmp_path / "x.safetensors", adapter())
    assert runner.invoke(app, ["encode", str(path)]).exit_code == 0
    assert Shown.texts == (["encoding x.safetensors"] if patience == 0 else [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["encode", "missing.safetensors"], "missing.safetensors: No such file"),
        (["encode", "weights.pt"], "name a file that ends in .safetensors, .npz or .npy"),
        (["encode", "x.safetensors", "--bits", "9"], "bits_per_parameter must be from 0.0001 to 8"),
        (["encode", "x.safetensors", "--budget", "100"], "budget_bytes is 100"),
        (["encode", "x.safetensors", "--bits", "1", "--budget", "1000"], "both --bits and --budget"),
        (["encode", "x.safetensors", "--base", "y.safetensors"], "has no counterpart in y.safetensors"),
        (["decode", "x.safetensors"], "name the file to write with --out"),
        (["decode", "x.safetensors", "-o", "z.safetensors"], "x.safetensors: these bytes were not written by klms"),
        (["decode", "x.klms"], "with --out, name a file that ends in .safetensors, .npz, .npy"),
        (["decode", "x.klms", "-o", "z.bin"], "name a file that ends in"),
        (["decode", "x.klms", "-o", "z.npy"], "a .npy file holds one array"),
        (["decode", "x.klms", "-o", "z.npz", "--base", "x.safetensors"], "omit --base"),
        (["decode", "x.klms", "-o", "z.npz", "--max-bytes", "1000"], "raise --max-bytes"),
    ],
)
def test_errors_say_what_to_do(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "x.safetensors", adapter())
    write(tmp_path / "y.safetensors", adapter(width=64))
    (tmp_path / "weights.pt").write_bytes(b"")
    encode(path, tmp_path / "x.klms")
    shown = runner.invoke(app, arguments)
    assert shown.exit_code == 1
    assert words in shown.output.replace("\n", " ")
    assert not any(one.name.startswith("z") for one in tmp_path.iterdir())


def test_the_functions_overwrite_nothing_that_they_read(tmp_path):
    tensors = np.ones((40, 50), np.float32)
    np.save(tmp_path / "one.npy", tensors)
    with pytest.raises(InvalidArgument, match="would overwrite what is read"):
        encode(tmp_path / "one.npy", tmp_path / "one.npy", 1)
    encode(tmp_path / "one.npy", tmp_path / "one.klms", 1, base=tmp_path / "one.npy")
    with pytest.raises(InvalidArgument, match="would overwrite what is read"):
        decode(tmp_path / "one.klms", tmp_path / "one.npy", base=tmp_path / "one.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), tensors)


def test_entries_that_cannot_be_encoded_are_named(tmp_path):
    np.savez(tmp_path / "some.npz", good=np.ones(50, np.float32), bad=np.array([1, np.nan], np.float32))
    with pytest.raises(DataError, match=r"some\.npz: tensor 'bad' has entries that are not finite"):
        encode(tmp_path / "some.npz", tmp_path / "some.klms", 1)
    assert not (tmp_path / "some.klms").exists()
