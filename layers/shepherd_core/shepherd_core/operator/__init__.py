"""What operators and deployments ask for: adopt, forget and release machines; migrate the schema."""
