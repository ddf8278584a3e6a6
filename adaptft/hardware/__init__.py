"""Reading the machine."""
