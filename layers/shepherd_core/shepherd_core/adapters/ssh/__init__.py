"""SSH to the machines: ``dialer`` for the function, ``helper`` and ``client`` for the processes of the machines."""
