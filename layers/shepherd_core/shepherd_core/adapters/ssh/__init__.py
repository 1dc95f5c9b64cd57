"""SSH to the machines: ``dialer`` for the function, ``fork_server`` and ``client`` for the machines' processes."""
