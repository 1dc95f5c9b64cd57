"""What the BMDB holds, in words and as JSON: for the commands and for the console."""
