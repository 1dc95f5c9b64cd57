"""The rules, as pure functions: provisioning, drift, remediation, the circuit breaker."""
