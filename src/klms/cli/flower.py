"""`klms flower`: Flower deployments, and apps for them."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from klms.cli.show import console, fail, progress

app = typer.Typer(help="Flower: our methods as apps, and a deployment to look at.", no_args_is_help=True)


def _need_flower() -> None:
    try:
        import klms.flower.server  # noqa: F401
    except ImportError as error:
        raise fail(f"{error}; this needs Flower: pip install 'klms[flower]'") from error


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training.")] = 5,
    secure: Annotated[bool, typer.Option("--secure", help="With TLS, and SuperNodes that show their keys.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the run, the logs and the app in this folder.")] = None,
) -> None:
    """Train FedPM-KLMS on MNIST on a SuperLink and three SuperNodes, processes of this machine.

    Payload bytes are what our messages take; wire bytes are all that passed between the SuperNodes and the SuperLink.
    Examples: `klms flower demo`, `klms flower demo --secure --rounds 10`
    """
    _need_flower()
    from klms.data import DataError
    from klms.experiments.settings import SettingsError
    from klms.flower import demo as showing
    from klms.flower.deployment import DeploymentFailed

    screen = console()
    line = "{:>5}  {:>8}  {:>7}  {:>13}  {:>14}  {:>13}  {:>15}  {:>7}"
    screen.print(
        line.format(
            "round",
            "accuracy",
            "replies",
            "payload bytes",
            "bits/parameter",
            "wire bytes up",
            "wire bytes down",
            "seconds",
        ),
        style="bold",
    )
    with tempfile.TemporaryDirectory() as temporary, progress() as bar:
        task = bar.add_task("fetching the data, starting a SuperLink and three SuperNodes")
        try:
            for done in showing.run(out or Path(temporary), rounds=rounds, secure=secure):
                shown = (
                    done.round,
                    f"{done.accuracy:.4f}",
                    done.replies,
                    f"{done.payload_bytes:,}",
                    f"{done.bits_per_parameter:.4f}",
                    f"{done.wire.up:,}",
                    f"{done.wire.down:,}",
                    f"{done.seconds:.1f}",
                )
                screen.print(line.format(*shown), highlight=False)
                bar.update(task, description=f"round {done.round + 1} of {rounds}" if done.round < rounds else "ending")
        except (DeploymentFailed, SettingsError, DataError) as error:
            raise fail(str(error)) from error
    screen.print("all processes have ended" + (f"; the run is in {out}" if out else ""), highlight=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def new(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder of the app; it must not be there.")],
    method: Annotated[str, typer.Option(help="A method, as of `klms methods`.")] = "fedpm-klms",
    profile: Annotated[str, typer.Option(help="small or paper.")] = "small",
) -> None:
    """Write an app for `flwr run`: a method of klms with all its settings, which are those of `klms run`.

    Examples: `klms flower new app`, `klms flower new app --method qsgd-klms --clients 20 --rounds 100`
    """
    _need_flower()
    from klms.experiments.settings import SettingsError, parse_options, resolve
    from klms.flower import template_app
    from klms.flower.settings import ServerSettings

    try:
        config = resolve(method, profile=profile, given=parse_options(context.args))
        template_app.create(folder, config, ServerSettings())
    except SettingsError as error:
        raise fail(str(error)) from error
    console().print(f"{folder}: `flwr run {folder}` runs it in simulation; its README says the rest", highlight=False)
