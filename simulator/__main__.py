"""`python -m simulator`: see ``invoke``. An interrupt may also come during the imports, which take seconds."""

import sys

from shepherdctl.interrupts import graceful_exit

if __name__ == "__main__":
    with graceful_exit():
        from simulator.lambda_.invoke import main

        sys.exit(main())
