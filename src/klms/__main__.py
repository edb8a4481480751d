"""The `klms` command, which is also `python -m klms`."""

from klms.stops import ending, watch


def main() -> None:
    """Run the command. It can be stopped from now on, also while it imports what it needs."""
    watch()
    with ending():
        from klms.cli import app

        app()


if __name__ == "__main__":
    main()
