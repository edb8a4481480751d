"""`klms bench`: measure the codec and the compression schemes on this machine."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import klms
from klms.cli.show import console, fail, need, progress, say, show_table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

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
    rows = []
    with progress() as shown:
        task = shown.add_task("measuring", total=None)
        for row in bench.run(
            families=family or bench.FAMILIES,
            bits=bits or bench.BITS,
            d=d,
            scaling=(100_000, 1_000_000, 10_000_000) if scaling else (),
        ):
            rows.append(row)
            shown.update(task, description=f"measured {row.family}, {row.bits} bits, {row.threads} threads")
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows), indent=2))
        return
    table = Table(title=f"Codec, nanoseconds per parameter, blocks of {bench.BLOCK} parameters")
    columns = (
        "family",
        "bits",
        "memory",
        "parameters",
        "threads",
        "encode",
        "decode",
        "NumPy",
        "faster",
        "extra B/param",
    )
    for name in columns:
        table.add_column(name, justify="left" if name == "family" else "right")
    for row in rows:
        table.add_row(
            row.family,
            str(row.bits),
            str(row.memory),
            f"{row.d:,}",
            str(row.threads),
            f"{row.encode_ns:.1f}",
            f"{row.decode_ns:.2f}",
            "" if row.oracle_ns is None else f"{row.oracle_ns:,.0f}",
            "" if row.speedup is None else f"{row.speedup:.0f}x",
            "" if row.extra_bytes_per_parameter is None else f"{row.extra_bytes_per_parameter:.1f}",
        )
    console().print(table)
    table = Table(title="What arrives of q - p when the KL of a block equals its bits (p = 1/2)")
    for name in ("bits, memory", "candidates", *klms.codec.SELECTIONS):
        table.add_column(name, justify="right")
    for b, memory in bench.TRELLISES:
        shares = (f"{bench.survived(b, memory, selection):.3f}" for selection in klms.codec.SELECTIONS)
        table.add_row(f"{b}, {memory}", str(1 << (b + memory)), *shares)
    console().print(table)


@app.command("mean")
def bench_mean(
    vectors: Annotated[
        list[str] | None,
        typer.Option(help="Kind of vectors: gaussian, lognormal or real (needs klms[learn]); may be repeated."),
    ] = None,
    scheme: Annotated[list[str] | None, typer.Option(help="Measure only this scheme; may be repeated.")] = None,
    clients: Annotated[int, typer.Option(help="Number of clients whose vectors are averaged.", min=1)] = 10,
    d: Annotated[int, typer.Option(help="Number of parameters of the artificial vectors.", min=1000)] = 1 << 17,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the result to this .png, .svg or .pdf file (needs klms[plots]).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare schemes by bits per parameter and by the error of the average, next to the theoretical limit.

    Example: `klms bench mean --vectors gaussian --picture mean.png`
    """
    from klms.benchmarks import mean as bench
    from klms.compressors.schemes import UPDATE_SCHEMES

    _check_names("kind of vectors", vectors, bench.VECTORS)
    _check_names("scheme", scheme, bench.NAMES)
    if picture is not None and (not picture.parent.is_dir() or picture.suffix not in (".png", ".svg", ".pdf")):
        raise fail(f"{picture} cannot be drawn: name a .png, .svg or .pdf file in an existing folder")
    rows: list[bench.Row] = []
    chosen = vectors or bench.VECTORS
    if "real" in chosen:
        need("torch", "learn")
    if picture is not None:
        need("matplotlib", "plots")
    with progress(bar=True) as shown:
        points = sum(len(UPDATE_SCHEMES[name].operating_points) for name in scheme or bench.NAMES)
        task = shown.add_task("measuring", total=points * len(chosen))
        for row in bench.run(vectors=chosen, schemes=scheme or bench.NAMES, clients=clients, d=d):
            rows.append(row)
            shown.update(task, advance=1, description=f"{row.vectors}: {row.scheme}, {row.setting}")
    if picture is not None:
        bench.draw(rows, clients, picture)
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows, clients), indent=2))
        return
    columns = ("scheme", "setting", "", "bits/parameter", "error", "limit", "error / limit", "ns/parameter")
    for kind in chosen:
        cells = []
        for row in (row for row in rows if row.vectors == kind):
            errors = (f"{row.error:.4g}", f"{row.limit:.4g}", f"{row.error / row.limit:.2f}")
            numbers = (f"{row.bits_per_parameter:.4f}", *errors, f"{row.encode_ns:.0f}")
            cells.append((row.scheme, row.setting, "" if row.unbiased else "biased", *numbers))
        title = f"Average of {clients} {kind} vectors; the limit is that of unbiased schemes"
        show_table(columns, cells, title=title, right=columns[3:])
    if picture is not None:
        say(f"drawn: {picture}")


@app.command("server")
def bench_server(
    scheme: Annotated[list[str] | None, typer.Option(help="Measure only this scheme; may be repeated.")] = None,
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
    rows: list[bench.Row] = []
    with progress() as shown:
        task = shown.add_task("encoding messages", total=None)
        for row in bench.run(schemes=scheme or bench.SCHEME_NAMES, d=d, messages=messages or (250, 500, 1000)):
            rows.append(row)
            shown.update(task, description=f"aggregated {row.messages} messages of {row.scheme}")
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows), indent=2))
        return
    cells = []
    for row in rows:
        peak = "" if row.peak_models is None else f"{row.peak_models:.2f}"
        numbers = (f"{row.bits_per_parameter:.4f}", f"{row.seconds:.2f}", f"{row.ms_per_message:.2f}", peak)
        cells.append((row.scheme, str(row.messages), *numbers))
    columns = ("scheme", "messages", "bits/parameter", "seconds", "ms/message", "peak memory, models")
    title = f"Server: {d:,} parameters; memory in units of the model's float32 size"
    show_table(columns, cells, title=title, right=columns[1:])


def _check_names(what: str, given: list[str] | None, known: Iterable[str]) -> None:
    from klms.runs.settings import check_name

    for name in given or ():
        check_name(what, name, known)
