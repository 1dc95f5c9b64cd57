"""The rules between settings, by subject. ``settings.check`` applies them."""
