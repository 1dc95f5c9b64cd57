"""The actions of operators and deployments: adopt, forget and release machines; migrate the schema."""
