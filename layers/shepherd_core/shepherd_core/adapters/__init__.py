"""The world outside behind our own interfaces: SSH, AWS, secrets, documents."""
