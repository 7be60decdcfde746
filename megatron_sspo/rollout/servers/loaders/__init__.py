"""The loaders that servers import: this folder is in their PYTHONPATH, and nothing else of the trainer's."""
