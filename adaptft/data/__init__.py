"""Reading, rendering, tokenising and packing training data."""
