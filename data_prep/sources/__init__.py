"""Where logs come from: download, or synthetic with its shape and its clicks."""
