"""
The bootstrap of Lambda's runtime for Python, at the pace of a simulated environment.

Run as ``python -m simulator.lambda_.bootstrap PACE HANDLER``, in the folder of the function.
"""

import json
import sys

from awslambdaric.__main__ import main  # type: ignore[import-untyped]
from shepherd_core.domain.pace import Pace
from shepherd_core.wiring import pace

if __name__ == "__main__":
    pace.current = Pace(**json.loads(sys.argv.pop(1)))
    main(sys.argv)
