"""Recovery: remediation attempts, the budget, and why a machine is worked on or is not."""
