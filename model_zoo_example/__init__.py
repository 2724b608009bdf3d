"""A decoder-only transformer with mHC and the program that trains it. A program to copy; it is not in the wheel."""
