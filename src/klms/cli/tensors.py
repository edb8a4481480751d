"""`klms encode` and `klms decode`: files of tensors as messages, and back."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from klms import tensor_files
from klms.cli.live import Live
from klms.cli.show import fail, say
from klms.tensor_files.formats import FORMATS

_PATIENCE = 2.0  # seconds until progress is shown
_SUFFIX = ".klms"

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if there is one.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Use this many threads; one per core by default.")]


def encode(
    file: Annotated[Path, typer.Argument(help="A .safetensors, .npz or .npy file.")],
    bits: Annotated[
        float | None, typer.Option(help="Bits per parameter, from 0.0001 to 8; 1 by default.", show_default=False)
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Largest size of the message in bytes, instead of --bits.")
    ] = None,
    base: Annotated[Path | None, typer.Option(help="Code the difference from this file, which decoding needs.")] = None,
    out: Out = None,
    unbiased: Annotated[
        bool,
        typer.Option("--unbiased", help="Make errors average out over many messages; each message has more error."),
    ] = False,
    effort: Annotated[
        Literal["fast", "balanced", "best"], typer.Option(help="Trade time for less error, with the same decoder.")
    ] = "balanced",
    threads: Threads = None,
    force: Force = False,
) -> None:
    """Compress the tensors of a file, or their difference from another file, to a fraction of a bit per parameter.

    Without `--out`, the message is FILE.klms. It carries all that `klms decode` needs: names, types, shapes, metadata.

    Examples: `klms encode adapter_model.safetensors --bits 2`, `klms encode new.safetensors --base old.safetensors`
    """
    if bits is not None and budget is not None:
        raise fail("both --bits and --budget set the size of the message: omit one")
    target = out or file.with_name(file.name + _SUFFIX)
    _check_target(target, force, file, base)
    with Live() as live:
        done = tensor_files.encode(
            file,
            target,
            bits,
            base=base,
            budget_bytes=budget,
            unbiased=unbiased,
            effort=effort,
            threads=threads,
            progress=_patient(live, f"encoding {file.name}"),
        )
    of_what = " of the difference" if base else ""
    say(
        f"{target}: {done.parameters:,} parameters in {done.message_bytes:,} bytes, {done.bits_per_parameter:.4g} bits "
        f"per parameter, {done.file_bytes / done.message_bytes:,.1f} x smaller than the file; relative squared error"
        f"{of_what} {done.relative_error:.3g}; {done.seconds:.1f} s"
    )


def decode(
    file: Annotated[Path, typer.Argument(help="A message from `klms encode`.")],
    base: Annotated[Path | None, typer.Option(help="The file from which the difference was coded.")] = None,
    out: Out = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Bytes for the tensors; by default 256 MiB plus 1024 times the size of the file."),
    ] = None,
    threads: Threads = None,
    force: Force = False,
) -> None:
    """Restore the tensors of a message from `klms encode`, or from `klms.compress` without a key.

    Without `--out`, the file has the name of the message without .klms. The suffix of its name decides the format.

    Examples: `klms decode adapter_model.safetensors.klms -o restored.safetensors`,
    `klms decode new.safetensors.klms --base old.safetensors -o new.safetensors`
    """
    if out is None and file.suffix != _SUFFIX:
        raise fail(f"{file} does not end in {_SUFFIX}: name the file to write with --out")
    target = out or file.with_suffix("")
    if out is None and target.suffix.lower() not in FORMATS:
        raise fail(f"{file} does not tell the format: with --out, name a file that ends in {', '.join(FORMATS)}")
    _check_target(target, force, file, base)
    started = time.monotonic()
    with Live() as live:
        count = tensor_files.decode(
            file,
            target,
            base=base,
            max_bytes=max_bytes,
            threads=threads,
            progress=_patient(live, f"decoding {file.name}"),
        )
    say(f"{target}: {count:,} tensors, {target.stat().st_size:,} bytes; {time.monotonic() - started:.1f} s")


def _check_target(target: Path, force: bool, *sources: Path | None) -> None:
    """End the command if it would overwrite a file that it reads, or any other file unless `force`."""
    tensor_files.check_apart(target, *sources)
    if target.exists() and not force:
        raise fail(f"{target} exists: name another file with --out, or overwrite it with --force")
    if not target.parent.is_dir():
        raise fail(f"there is no folder {target.parent}: create it, or name another file with --out")


def _patient(live: Live, text: str) -> Callable[[int, int], None]:
    """Return a function that shows progress once the work has taken a while."""
    started = time.monotonic()

    def show(done: int, total: int) -> None:
        if time.monotonic() - started > _PATIENCE:
            live.show(text, done, total)

    return show
