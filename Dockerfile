# The scoring service alone: no MindSpore, no MPI. See docs/serving.md; a test runs the same steps.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
WORKDIR /serving
COPY requirements-serving.txt ./
RUN python -m venv .venv && .venv/bin/python -m pip install --no-cache-dir -r requirements-serving.txt
COPY common common
COPY data_prep data_prep
COPY app app
COPY scripts/native.mk scripts/
RUN make -C data_prep/kernels/csrc all

FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /serving /serving
WORKDIR /serving
USER nobody
EXPOSE 8000
STOPSIGNAL SIGTERM
# Kubernetes ignores this line and has probes of its own (examples/kubernetes/service.yaml).
HEALTHCHECK --start-period=60s CMD [".venv/bin/python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=5)"]
ENTRYPOINT [".venv/bin/python", "-m", "app.cli.serve"]
CMD ["/models", "--host", "0.0.0.0"]
