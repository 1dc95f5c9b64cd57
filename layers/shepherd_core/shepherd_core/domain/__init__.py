"""What everything else is built from: machines, providers, errors, clocks, back-off. No input or output."""
