"""`klms bench`: measure the codec and the compression schemes on this machine."""

import json
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

import klms
from klms.benchmarks import codec, downlink, link, mean, server
from klms.benchmarks.rows import table
from klms.benchmarks.updates import KINDS
from klms.cli.live import Live
from klms.cli.settings import completing
from klms.cli.show import fail, need, say, show_table
from klms.compressors.schemes import SCHEMES, UPDATE_SCHEMES
from klms.experiments import pictures
from klms.numerics.parallel import cores

Schemes = Annotated[
    list[str] | None,
    typer.Option(help="Measure only this scheme; may be repeated.", autocompletion=completing(SCHEMES)),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Row = TypeVar("Row")

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
    """Measure encoding and decoding in nanoseconds per parameter, compared with the paper's algorithm in NumPy.

    Example: `klms bench codec --family bernoulli --bits 8 --no-scaling`
    """
    sizes = (100_000, 1_000_000, 10_000_000) if scaling else ()
    measured = codec.run(families=family or codec.FAMILIES, bits=bits or codec.BITS, d=d, scaling=sizes)
    rows = _collect(measured, lambda row: f"{row.family}, {row.bits} bits, {row.threads} threads")
    title = f"Codec, nanoseconds per parameter, blocks of {codec.BLOCK} parameters"
    _print(rows, as_json, title, block=codec.BLOCK, kl_bits_per_block=codec.KL_OF_BLOCK)
    if as_json:
        return
    survivals = []
    for b, memory in codec.TRELLISES:
        shares = (f"{codec.survived(b, memory, selection):.3f}" for selection in klms.codec.SELECTIONS)
        survivals.append((f"{b}, {memory}", str(1 << (b + memory)), *shares))
    columns = ("bits, memory", "candidates", *klms.codec.SELECTIONS)
    title = "Part of q - p that survives when the KL of a block equals its bits (p = 1/2)"
    show_table(columns, survivals, title=title, right=columns)


@app.command("mean")
def bench_mean(
    vectors: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of vectors: gaussian, lognormal, or real updates of a model; may be repeated: "
            "lenet, conv6, lstm, transformer, lora."
        ),
    ] = None,
    scheme: Schemes = None,
    clients: Annotated[int, typer.Option(help="Number of clients whose vectors are averaged.", min=1)] = 10,
    d: Annotated[int, typer.Option(help="Number of parameters of the artificial vectors.", min=1000)] = 1 << 17,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the result to this .png, .svg or .pdf file (needs the extra plots).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare schemes, and the theoretical limit, by bits per parameter and by the error of the average.

    Example: `klms bench mean --vectors gaussian --picture mean.png`
    """
    chosen = vectors or mean.VECTORS
    schemes = scheme or mean.NAMES
    if picture is not None:
        need("matplotlib", "plots")
        if not picture.parent.is_dir() or picture.suffix not in (".png", ".svg", ".pdf"):
            raise fail(f"{picture} cannot be drawn: name a .png, .svg or .pdf file in an existing folder")
    if set(chosen) & set(KINDS):
        need("torch", "learn")
    points = sum(len(UPDATE_SCHEMES[name].operating_points) for name in schemes if name in UPDATE_SCHEMES)
    measured = mean.run(vectors=chosen, schemes=schemes, clients=clients, d=d)
    rows = _collect(measured, lambda row: f"{row.vectors}: {row.scheme}, {row.setting}", len(chosen) * points)
    if picture is not None:
        pictures.mean_estimation(rows, clients, picture)
    title = f"Average of {clients} vectors; the limit is that of unbiased schemes on normal vectors"
    _print(rows, as_json, title, clients=clients)
    if picture is not None and not as_json:
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
    measured = server.run(schemes=scheme or server.SCHEME_NAMES, d=d, messages=messages or (250, 500, 1000))
    rows = _collect(measured, lambda row: f"{row.messages} messages of {row.scheme}")
    _print(rows, as_json, "Server; memory in units of the model's float32 size")


@app.command("downlink")
def bench_downlink(
    d: Annotated[int, typer.Option(help="Number of parameters.", min=1000)] = 1_000_000,
    clients: Annotated[int, typer.Option(help="Clients per round.", min=1)] = 10,
    rate: Annotated[float, typer.Option(help="Bits per parameter of coded differences.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Measure what the downlink adds to a round: time at the server and at a client, and bits that a client receives.

    Example: `klms bench downlink --d 100000 --clients 20`
    """
    measured = downlink.run(d=d, clients=clients, rate=rate)
    rows = _collect(measured, lambda row: f"round {row.round} of {row.scheme}, {row.downlink}")
    _print(rows, as_json, f"Downlink: {d:,} parameters, {clients} clients")


@app.command("link")
def bench_link(
    parameters: Annotated[
        list[int] | None,
        typer.Option(help="Number of parameters; may be repeated. 400,000, 11 million and 100 million by default."),
    ] = None,
    speed: Annotated[
        list[float] | None,
        typer.Option(help="Link speed in Mbit/s; may be repeated. 1, 10, 100 and 500 by default."),
    ] = None,
    bits: Annotated[float, typer.Option(help="Bits per parameter in both directions.")] = 1.0,
    clients: Annotated[int, typer.Option(help="Clients per round.", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """Compute how long a round's messages take at a link speed, with klms and without, from measured bytes and time.

    Example: `klms bench link --parameters 11000000 --bits 0.1`
    """
    measured = link.run(
        parameters=parameters or link.PARAMETERS, speeds=speed or link.SPEEDS, bits=bits, clients=clients
    )
    rows = _collect(measured, lambda row: f"{row.parameters:,} parameters at {row.speed:g} Mbit/s")
    title = f"One round of {clients} clients, computed from measured bytes and processor seconds on one thread"
    _print(rows, as_json, title, clients=clients)


def _collect(rows: Iterable[Row], describe: Callable[[Row], str], total: int | None = None) -> list[Row]:
    """Collect the rows of a benchmark, and show what was measured last; `total` is their number, if known."""
    collected = []
    with Live() as live:
        live.show("measuring")
        for row in rows:
            collected.append(row)
            done = len(collected)
            line = f"measured {done} of {total}: {describe(row)}" if total else f"measured {done}: {describe(row)}"
            live.show(describe(row), done, total, line=line)
    return collected


def _print(measured: Sequence[Any], as_json: bool, title: str, **about: object) -> None:
    """Print the rows as a table, or as JSON with the versions, the machine and the settings of the measurement."""
    if not as_json:
        heads, numbers, cells = table(measured)
        show_table(heads, cells, title=title, right=numbers)
        return
    versions = {"klms": klms.__version__, "python": platform.python_version(), "numpy": metadata.version("numpy")}
    machine = {"numba": metadata.version("numba"), "machine": platform.machine(), "cores": cores()}
    typer.echo(json.dumps({**versions, **machine, **about, "rows": [asdict(row) for row in measured]}, indent=2))
