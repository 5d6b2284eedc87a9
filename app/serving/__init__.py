"""Serve scores over HTTP from a bundle or a folder of bundles.

- `options`: options of the command line.
- `processes`: opens the sockets, starts the worker processes and handles signals.
- `connections`: the HTTP server of a worker, with bounds on requests.
- `service`: the routes and their handlers. page.html is the page that a browser shows.
- `forms`: converts the body of a request to rows, with one module for each format. `decoding` decodes large bodies in
  another process.
- `batching`: scores waiting requests together.
- `generations`: opens new models, checks them and switches to them. `statement` stores which version must serve, and
  an online trainer's report.
- `observed`: metrics, the access log, and drift (how the scored rows differ from the rows on which the model was
  evaluated).
- `openapi`: the OpenAPI document.

Nothing in this package imports MindSpore or MPI.
"""
