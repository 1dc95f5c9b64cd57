"""`python -m simulator`: see ``invoke``, whose modules take seconds to import, in which it may be interrupted too."""

import sys

from shepherdctl.interrupts import graceful_exit

if __name__ == "__main__":
    with graceful_exit():
        from simulator.lambda_.invoke import main

        sys.exit(main())
