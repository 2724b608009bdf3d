"""A registry, and one file per way to compute."""
