"""`python -m simulator`: see ``invoke``, whose modules take seconds to import, in which it may be interrupted too."""

import sys

from shepherdctl.interrupts import ended_in_order

if __name__ == "__main__":
    with ended_in_order():
        from simulator.lambda_.invoke import main

        sys.exit(main())
