"""Recovery: remediation attempts, suspensions, and operators' overrides."""
