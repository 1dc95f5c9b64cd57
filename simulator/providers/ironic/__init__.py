"""Simulated OpenStack Ironic: a small fake, or the real service with drivers that touch no hardware."""
