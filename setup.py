"""Metadata stand in pyproject.toml."""

from setuptools import setup

setup()
