"""What the commands use of a deployment besides the BMDB: the functions' logs, the settings document in S3."""
