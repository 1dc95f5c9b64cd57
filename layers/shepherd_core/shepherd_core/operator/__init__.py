"""The actions of operators and deployments: adopt, rebind, forget and release machines; migrate the schema."""
