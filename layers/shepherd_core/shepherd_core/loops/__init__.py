"""The loops: Provisioner, Initializer, Recoverer, Updater, and what runs them."""
