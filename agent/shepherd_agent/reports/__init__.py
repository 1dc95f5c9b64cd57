"""Reports to the endpoint."""
