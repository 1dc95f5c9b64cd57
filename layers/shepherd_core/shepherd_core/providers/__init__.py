"""Adapters, one for each vendor. They know the vendor's words and never the BMDB."""
