"""The web console: the fleet in a browser, served from the operator's own machine. ``shepherdctl console`` runs it."""
