"""The scoring service over bundles: options (of the command line), forms (bodies to lines of the log), decoding (large
bodies, in another process), batching (requests joined, and the threads and event loop that score), statement (what must
serve), generations (bundles opened, checked, swapped, pinned), observed (metrics, drift, access log), openapi (the
document), service (routes, and page.html to look at), connections (uvicorn's server: bounds, drain), processes
(sockets, workers, signals).

Nothing here imports MindSpore or MPI.
"""
