"""The basic types: machines, providers, errors, clocks, backoff. No input or output."""
