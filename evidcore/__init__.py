"""Train 3D medical vision-language models whose words are tied to visible evidence."""

__version__ = "0.1.0"
