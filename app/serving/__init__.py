"""Serve scores over HTTP from a bundle or a folder of bundles.

- `options`: options of the command line.
- `processes`: sockets, worker processes and signals.
- `connections`: the HTTP server of a worker, with bounds on requests.
- `service`: the routes. page.html is the page for people.
- `forms`: converts the body of a request to rows. `decoding` decodes large bodies in another process.
- `batching`: scores waiting requests together.
- `generations`: opens, checks, swaps and pins the served models. `statement` says which one must serve.
- `observed`: metrics, drift and the access log.
- `openapi`: the OpenAPI document.

Nothing in this package imports MindSpore or MPI.
"""
