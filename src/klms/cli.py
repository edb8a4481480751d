"""The command line: parses, calls, prints."""

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import klms

app = typer.Typer(
    help="Federated-learning updates at the cost of their KL divergence.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
bench_app = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(bench_app, name="bench")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(klms.__version__)
        raise typer.Exit


def _fail(message: str) -> typer.Exit:
    Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {message}", soft_wrap=True)
    return typer.Exit(1)


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated-learning updates at the cost of their KL divergence."""


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A file that holds one message.")],
    as_json: AsJson = False,
) -> None:
    """Show what a message says of itself. Neither `p` nor the key is needed.

    Example: `klms inspect client-3.klms`
    """
    try:
        info = klms.inspect(file.read_bytes())
    except OSError as error:
        raise _fail(f"{file}: {error.strerror}") from error
    except klms.KLMSError as error:
        raise _fail(f"{file}: {error}") from error
    fields = dataclasses.asdict(info) | {"tag": info.tag.hex(), "bits_per_parameter": info.bits_per_parameter}
    if as_json:
        typer.echo(json.dumps(fields, indent=2))
        return
    table = Table(box=None, show_header=False)
    for name, value in fields.items():
        shown = f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
        table.add_row(name.replace("_", " "), shown)
    _console().print(table)


@app.command()
def demo(
    keep: Annotated[Path | None, typer.Option(help="Keep the clients' messages in this folder.")] = None,
) -> None:
    """Send one round of masks from ten processes, decode them here, and show what it cost.

    Example: `klms demo --keep messages/`, then `klms inspect messages/client-0.klms`
    """
    from klms import demo as round_

    with tempfile.TemporaryDirectory() as scratch, _progress() as progress:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        task = progress.add_task("clients train, encode and send", total=round_.CLIENTS)
        outcome = round_.run(folder, os.cpu_count() or 1, lambda: progress.advance(task))
    parameters = outcome.d * outcome.clients
    table = Table(title=f"One round: {outcome.clients} clients, {outcome.d:,} parameters each")
    for name in ("sent as", "bytes up", "bits per parameter", "times smaller", "RMS error of the mean"):
        table.add_column(name, justify="left" if name == "sent as" else "right")
    for name, size, error in (
        ("float32 probabilities", 4 * parameters, 0.0),
        ("sampled masks, 1 bit", parameters / 8, outcome.vanilla_error),
        ("klms messages", outcome.message_bytes, outcome.error),
    ):
        table.add_row(
            name, f"{size:,.0f}", f"{8 * size / parameters:.4f}", f"{4 * parameters / size:,.0f}", f"{error:.3f}"
        )
    console = _console()
    console.print(table)
    console.print(
        f"KL of the updates: {outcome.kl_bits_per_parameter:.4f} bits per parameter. "
        f"Block maps: {outcome.block_size_bytes:,} of the bytes, sent in the rounds that cut blocks anew. "
        f"Of the mean update {outcome.survived:.0%} arrives in expectation.",
        highlight=False,
    )


@bench_app.command("codec")
def bench_codec(
    family: Annotated[list[str] | None, typer.Option(help="bernoulli, ternary or gaussian; may be repeated.")] = None,
    bits: Annotated[list[int] | None, typer.Option(help="Bits of an index; may be repeated.")] = None,
    d: Annotated[int, typer.Option(help="Parameters.", min=1000)] = 2_000_000,
    scaling: Annotated[bool, typer.Option(help="Also 10^5, 10^6 and 10^7 parameters.")] = True,
    as_json: AsJson = False,
) -> None:
    """Nanoseconds per parameter to encode and to decode, beside the paper's algorithm in NumPy.

    Example: `klms bench codec --family bernoulli --bits 8 --no-scaling`
    """
    from klms.benchmarks import codec as bench

    unknown = set(family or ()) - set(bench.FAMILIES)
    if unknown:
        raise _fail(f"no family {', '.join(sorted(unknown))}; there are {', '.join(bench.FAMILIES)}")
    if any(not 1 <= b <= klms.MAX_BITS for b in bits or ()):
        raise _fail(f"--bits must be 1 to {klms.MAX_BITS}")
    rows = []
    with _progress() as progress:
        task = progress.add_task("measuring", total=None)
        for row in bench.run(
            families=family or bench.FAMILIES,
            bits=bits or bench.BITS,
            d=d,
            scaling=(100_000, 1_000_000, 10_000_000) if scaling else (),
        ):
            rows.append(row)
            progress.update(task, description=f"measured {row.family}, {row.bits} bits, {row.threads} threads")
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows), indent=2))
        return
    table = Table(title=f"Codec, ns per parameter; blocks of {bench.BLOCK}, best of several")
    for name in ("family", "bits", "parameters", "threads", "encode", "decode", "NumPy", "faster", "extra B/param"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for row in rows:
        table.add_row(
            row.family,
            str(row.bits),
            f"{row.d:,}",
            str(row.threads),
            f"{row.encode_ns:.1f}",
            f"{row.decode_ns:.2f}",
            "" if row.oracle_ns is None else f"{row.oracle_ns:,.0f}",
            "" if row.speedup is None else f"{row.speedup:.0f}x",
            "" if row.extra_bytes_per_parameter is None else f"{row.extra_bytes_per_parameter:.1f}",
        )
    _console().print(table)


def _console() -> Console:
    """As wide as the terminal; wide enough for every table where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def _progress() -> Progress:
    """On standard error, and only on a terminal: what is piped on stays clean."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
