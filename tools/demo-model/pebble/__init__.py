"""The network of Pebble with its training on a CPU."""
