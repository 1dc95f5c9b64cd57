"""OpenStack Ironic."""
