"""The base of runtime containerlab: engine, images and binary, and their installation."""
