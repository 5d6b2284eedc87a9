"""Write, read and keep checkpoints. A checkpoint is either complete or does not exist.

The modules:
- `manifest`: manifest.json, the description of a checkpoint.
- `write`: write a checkpoint into a folder `*.partial`, then rename the folder. `read`: open a checkpoint, and with a
  delta (changed rows only) the older checkpoints that it needs.
- `retention`: which checkpoints of a folder are kept, and which one is best.
- `zoo`: read a checkpoint of the MindSpore model zoo.

Array shapes are written with these letters: T rows of a table, n rows of one read, V vocabulary size, D embedding
width, H width of a layer.
"""
