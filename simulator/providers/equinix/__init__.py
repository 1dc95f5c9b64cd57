"""The simulated Equinix Metal API."""
