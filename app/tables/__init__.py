"""Host tables: embedding rows and their sparse optimizers, in host memory."""
