"""The `klms` command, which is also `python -m klms`."""

from klms.signals import ending, watch


def main() -> None:
    """Run the command, which can be stopped from here on, even during imports."""
    watch()
    with ending():
        from klms.cli import app

        app()


if __name__ == "__main__":
    main()
