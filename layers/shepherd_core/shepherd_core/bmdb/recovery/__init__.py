"""Recovery: remediation attempts, suspensions, and why a machine is worked on or is not."""
