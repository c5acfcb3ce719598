"""The commands of `asgld`: each parses, calls and prints."""
