"""The entry point. Signals are handled first, because importing the commands takes a second."""

from shepherdctl.interrupts import graceful_exit


def main() -> None:
    """Run the command line that this process was given."""
    with graceful_exit():
        from shepherdctl.main import main as run  # noqa: PLC0415 - see the module's docstring

        run()


if __name__ == "__main__":
    main()
