"""`klms bench`."""

import json
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
