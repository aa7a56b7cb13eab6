"""Looks at machines and running programs."""
