"""phoenixNAP's Bare Metal Cloud, simulated."""
