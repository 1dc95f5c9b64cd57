"""Tests of the provider, which run in a clone of Shepherd."""
