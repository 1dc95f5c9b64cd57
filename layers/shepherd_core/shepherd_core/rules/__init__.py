"""The rules, as pure functions: provisioning, drift, remediation, the budget of recovery."""
