"""`klms bench`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import klms
from klms.cli.show import console, fail, progress

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

app = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command("codec")
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
        raise fail(f"no family {', '.join(sorted(unknown))}; there are {', '.join(bench.FAMILIES)}")
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
    console().print(table)


@app.command("mean")
def bench_mean(
    vectors: Annotated[
        list[str] | None, typer.Option(help="gaussian, lognormal or real (needs klms[learn]); may be repeated.")
    ] = None,
    scheme: Annotated[list[str] | None, typer.Option(help="Only this scheme; may be repeated.")] = None,
    clients: Annotated[int, typer.Option(help="Clients whose vectors are averaged.", min=1)] = 10,
    d: Annotated[int, typer.Option(help="Parameters of the made vectors.", min=1000)] = 1 << 17,
    picture: Annotated[Path | None, typer.Option(help="Draw to this file (.png, .svg; needs klms[plots]).")] = None,
    as_json: AsJson = False,
) -> None:
    """Which scheme to pick: bits per parameter and the error of the average, beside the limit.

    Example: `klms bench mean --vectors gaussian --picture mean.png`
    """
    from klms.benchmarks import mean as bench
    from klms.data import DataError

    for given, known, what in ((vectors, bench.VECTORS, "vectors"), (scheme, bench.NAMES, "scheme")):
        unknown = set(given or ()) - set(known)
        if unknown:
            raise fail(f"no {what} {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if picture is not None and (not picture.parent.is_dir() or picture.suffix not in (".png", ".svg", ".pdf")):
        raise fail(f"{picture} cannot be drawn: it must be a .png, .svg or .pdf in a folder that is there")
    rows: list[bench.Row] = []
    chosen = vectors or bench.VECTORS
    try:
        with progress(bar=True) as shown:
            wanted = [s for s in bench.SCHEMES if s.name in (scheme or bench.NAMES)]
            task = shown.add_task("measuring", total=len(wanted) * len(chosen))
            for row in bench.run(vectors=chosen, schemes=scheme or bench.NAMES, clients=clients, d=d):
                rows.append(row)
                shown.update(task, advance=1, description=f"{row.vectors}: {row.scheme}, {row.setting}")
        if picture is not None:
            bench.draw(rows, clients, picture)
    except ModuleNotFoundError as error:
        extra = "plots" if error.name == "matplotlib" else "learn"
        raise fail(f"this needs {error.name}: pip install 'klms[{extra}]'") from error
    except (DataError, OSError) as error:
        raise fail(str(error)) from error
    if as_json:
        typer.echo(json.dumps(bench.as_json(rows, clients), indent=2))
        return
    for kind in chosen:
        table = Table(title=f"{kind} vectors, average of {clients}; error over the limit of unbiased schemes")
        for name in ("scheme", "setting", "", "bits/parameter", "error", "limit", "times limit", "ns/parameter"):
            table.add_column(name, justify="left" if name in ("scheme", "setting", "") else "right")
        for row in (row for row in rows if row.vectors == kind):
            table.add_row(
                row.scheme,
                row.setting,
                "" if row.unbiased else "biased",
                f"{row.bits_per_parameter:.4f}",
                f"{row.error:.4g}",
                f"{row.limit:.4g}",
                f"{row.error / row.limit:.2f}",
                f"{row.encode_ns:.0f}",
            )
        console().print(table)
    if picture is not None:
        console().print(f"drawn: {picture}")
