"""From what people write (options, YAML) to requests."""
