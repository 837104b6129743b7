"""Scripts and settings files for operators; `tidemark deploy` prints the folder. It is a package to be part of the wheel."""
