"""The commands that show the whole fleet: its status, what fails, its hardware, and its drift."""
