"""Settings to objects: builds adapters, providers and loops, and nothing else."""
