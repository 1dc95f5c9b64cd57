"""The outside world behind our own interfaces: SSH, AWS, secrets, documents."""
