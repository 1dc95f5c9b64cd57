"""Provider adapters, one for each vendor. They know the vendor's API and never the BMDB."""
