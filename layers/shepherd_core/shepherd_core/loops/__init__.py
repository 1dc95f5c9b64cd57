"""The loops: Provisioner, Initializer, Recoverer and Updater, and the runner of those that work on machines."""
