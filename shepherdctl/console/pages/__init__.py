"""What the console shows: the facts of each page, and the pages as HTML."""
