"""Adapters to outside systems, behind our own interfaces: SSH, AWS, secrets, documents."""
