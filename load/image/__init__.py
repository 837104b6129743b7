"""The image of deploy/container: built here without a registry, and run as a container runs it."""
