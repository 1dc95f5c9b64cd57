"""A deployment: its answers, its plan and how it is carried out; the functions' logs, the settings document in S3."""
