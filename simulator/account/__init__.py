"""An AWS account to deploy into, emulated on this computer."""
