"""Recovery: remediation attempts, suspensions, operators' overrides, and why a machine is worked on or is not."""
