"""`klms bench`: measure the codec and the compression schemes on this machine."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

import klms
from klms.cli import completion
from klms.cli.show import fail, need, progress, say, show_table

Schemes = Annotated[
    list[str] | None, typer.Option(help="Measure only this scheme; may be repeated.", autocompletion=completion.schemes)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Row = TypeVar("Row")
_SECONDS_BETWEEN_LINES = 10.0

app = typer.Typer(help="Measure speed and error on this machine.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command("codec")
def bench_codec(
    family: Annotated[
        list[str] | None,
        typer.Option(help="Measure only this family: bernoulli, ternary or gaussian; may be repeated."),
    ] = None,
    bits: Annotated[list[int] | None, typer.Option(help="Bits per index; may be repeated.")] = None,
    d: Annotated[int, typer.Option(help="Number of parameters.", min=1000)] = 2_000_000,
    scaling: Annotated[bool, typer.Option(help="Also measure 10^5, 10^6 and 10^7 parameters.")] = True,
    as_json: AsJson = False,
) -> None:
    """Measure the nanoseconds per parameter that encoding and decoding take, next to the paper's algorithm in NumPy.

    Example: `klms bench codec --family bernoulli --bits 8 --no-scaling`
    """
    from klms.benchmarks import codec as bench

    _check_names("family", family, bench.FAMILIES)
    if any(not 1 <= b <= klms.MAX_BITS for b in bits or ()):
        raise fail(f"--bits must be 1 to {klms.MAX_BITS}")
    sizes = (100_000, 1_000_000, 10_000_000) if scaling else ()
    measured = bench.run(families=family or bench.FAMILIES, bits=bits or bench.BITS, d=d, scaling=sizes)
    rows = _collect(measured, lambda row: f"measured {row.family}, {row.bits} bits, {row.threads} threads")
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows), indent=2))
        return
    cells = []
    for row in rows:
        what = (row.family, str(row.bits), str(row.memory), f"{row.d:,}", str(row.threads))
        speed = (f"{row.encode_ns:.1f}", f"{row.decode_ns:.2f}")
        compared = (_optional("{:,.0f}", row.oracle_ns), _optional("{:.0f}x", row.speedup))
        cells.append((*what, *speed, *compared, _optional("{:.1f}", row.extra_bytes_per_parameter)))
    timed = ("encode", "decode", "NumPy", "faster", "extra B/param")
    columns = ("family", "bits", "memory", "parameters", "threads", *timed)
    title = f"Codec, nanoseconds per parameter, blocks of {bench.BLOCK} parameters"
    show_table(columns, cells, title=title, right=columns[1:])
    survivals = []
    for b, memory in bench.TRELLISES:
        shares = (f"{bench.survived(b, memory, selection):.3f}" for selection in klms.codec.SELECTIONS)
        survivals.append((f"{b}, {memory}", str(1 << (b + memory)), *shares))
    surviving = ("bits, memory", "candidates", *klms.codec.SELECTIONS)
    title = "What arrives of q - p when the KL of a block equals its bits (p = 1/2)"
    show_table(surviving, survivals, title=title, right=surviving)


@app.command("mean")
def bench_mean(
    vectors: Annotated[
        list[str] | None,
        typer.Option(help="Kind of vectors: gaussian, lognormal, lenet, conv6 or lstm (real updates); repeatable."),
    ] = None,
    scheme: Schemes = None,
    clients: Annotated[int, typer.Option(help="Number of clients whose vectors are averaged.", min=1)] = 10,
    d: Annotated[int, typer.Option(help="Number of parameters of the artificial vectors.", min=1000)] = 1 << 17,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the result to this .png, .svg or .pdf file (needs the extra plots).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare schemes by bits per parameter and by the error of the average, next to the theoretical limit.

    Example: `klms bench mean --vectors gaussian --picture mean.png`
    """
    from klms.benchmarks import mean as bench
    from klms.benchmarks.updates import KINDS
    from klms.compressors.schemes import UPDATE_SCHEMES

    _check_names("kind of vectors", vectors, bench.VECTORS)
    _check_names("scheme", scheme, bench.NAMES)
    if picture is not None and (not picture.parent.is_dir() or picture.suffix not in (".png", ".svg", ".pdf")):
        raise fail(f"{picture} cannot be drawn: name a .png, .svg or .pdf file in an existing folder")
    chosen, schemes = vectors or bench.VECTORS, scheme or bench.NAMES
    if set(chosen) & set(KINDS):
        need("torch", "learn")
    if picture is not None:
        need("matplotlib", "plots")
    total = len(chosen) * sum(len(UPDATE_SCHEMES[name].operating_points) for name in schemes)
    measured = bench.run(vectors=chosen, schemes=schemes, clients=clients, d=d)
    rows = _collect(measured, lambda row: f"{row.vectors}: {row.scheme}, {row.setting}", total)
    if picture is not None:
        bench.draw(rows, clients, picture)
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows, clients), indent=2))
        return
    columns = ("scheme", "setting", "", "bits", "error", "/ limit", "/ EDEN's", "encode, ns", "decode, ns")
    for kind in chosen:
        cells = []
        for row in (row for row in rows if row.vectors == kind):
            eden = "" if row.over_eden is None else f"{row.over_eden:.3f}"
            errors = (f"{row.error:.4g}", f"{row.error / row.limit:.2f}", eden)
            numbers = (f"{row.bits_per_parameter:.4f}", *errors, f"{row.encode_ns:.0f}", f"{row.decode_ns:.0f}")
            cells.append((row.scheme, row.setting, "" if row.unbiased else "biased", *numbers))
        title = f"Average of {clients} {kind} vectors; the limit is that of unbiased schemes"
        show_table(columns, cells, title=title, right=columns[3:])
    if picture is not None:
        say(f"drawn: {picture}")


@app.command("server")
def bench_server(
    scheme: Schemes = None,
    messages: Annotated[
        list[int] | None, typer.Option(help="Messages to aggregate; may be repeated. 250, 500 and 1000 by default.")
    ] = None,
    d: Annotated[int, typer.Option(help="Number of parameters.", min=1000)] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Measure the time and memory that the server needs to decode and aggregate the messages of many clients.

    Example: `klms bench server --scheme eden --messages 100 --messages 200`
    """
    from klms.benchmarks import server as bench
    from klms.compressors.schemes import SCHEMES

    _check_names("scheme", scheme, SCHEMES)
    measured = bench.run(schemes=scheme or bench.SCHEME_NAMES, d=d, messages=messages or (250, 500, 1000))
    rows = _collect(measured, lambda row: f"aggregated {row.messages} messages of {row.scheme}")
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows), indent=2))
        return
    cells = []
    for row in rows:
        numbers = (f"{row.bits_per_parameter:.4f}", f"{row.seconds:.2f}", f"{row.ms_per_message:.2f}")
        cells.append((row.scheme, str(row.messages), *numbers, _optional("{:.2f}", row.peak_models)))
    columns = ("scheme", "messages", "bits/parameter", "seconds", "ms/message", "peak memory, models")
    title = f"Server: {d:,} parameters; memory in units of the model's float32 size"
    show_table(columns, cells, title=title, right=columns[1:])


@app.command()
def downlink(
    d: Annotated[int, typer.Option(help="Number of parameters.", min=1000)] = 1_000_000,
    clients: Annotated[int, typer.Option(help="Clients per round.", min=1)] = 10,
    rate: Annotated[float, typer.Option(help="Bits per parameter of coded differences.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Measure what the downlink adds to a round: time at the server and at a client, and bits that a client receives.

    Example: `klms bench downlink --d 100000 --clients 20`
    """
    from klms.benchmarks import downlink as bench

    measured = bench.run(d=d, clients=clients, rate=rate)
    rows = _collect(measured, lambda row: f"round {row.round} of {row.scheme}, {row.downlink}")
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows), indent=2))
        return
    cells = []
    for row in rows:
        numbers = (row.server_seconds, row.client_seconds, row.bits_per_parameter)
        cells.append((row.scheme, row.downlink, str(row.round), *(f"{number:.3f}" for number in numbers)))
    columns = ("uplink", "downlink", "round", "s at the server", "s at a client", "bits/parameter down")
    show_table(columns, cells, title=f"Downlink: {d:,} parameters, {clients} clients", right=columns[2:])


def _check_names(what: str, given: list[str] | None, known: Iterable[str]) -> None:
    from klms.numerics.checks import check_name

    for name in given or ():
        check_name(what, name, known)


def _collect(rows: Iterable[Row], describe: Callable[[Row], str], total: int | None = None) -> list[Row]:
    """Collect the rows of a benchmark, and show what was measured last; `total` is their number, if known.

    Without a terminal, a line now and then says how far it is.
    """
    collected, said = [], time.monotonic()
    with progress(bar=total is not None) as shown:
        task = shown.add_task("measuring", total=total)
        for row in rows:
            collected.append(row)
            shown.update(task, advance=1, description=describe(row))
            if shown.disable and time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                typer.echo(f"measured {len(collected)}{f' of {total}' if total else ''}: {describe(row)}", err=True)
    return collected


def _optional(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)
