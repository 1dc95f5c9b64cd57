"""Where the command line begins: its modules take a second to import, in which it may be interrupted too."""

from shepherdctl.interrupts import ended_in_order


def main() -> None:
    """Run the command line that this process was given."""
    with ended_in_order():
        from shepherdctl.main import main as run  # noqa: PLC0415 - see the module's docstring

        run()


if __name__ == "__main__":
    main()
