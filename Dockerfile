# Images of the demo and of the explorer. No test builds them (see docs/install.md).
#   docker build --target demo -t airfed-demo .         docker run --rm airfed-demo
#   docker build --target explorer -t airfed-explorer . docker run --rm -p 127.0.0.1:8080:8080 airfed-explorer
# For a torch without GPU libraries, name its package index: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.11-slim AS base
ARG PIP_EXTRA_INDEX_URL=
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home airfed
USER airfed
WORKDIR /home/airfed/airfed
COPY --chown=airfed . .
RUN make .venv/airfed.stamp
ENV PATH=/home/airfed/airfed/.venv/bin:$PATH

FROM base AS demo
CMD ["make", "demo"]

FROM base AS explorer
RUN pip install --no-cache-dir -c constraints.txt ".[web]"
EXPOSE 8080
# The page listens on all addresses of the container; every request needs the printed token.
CMD ["airfed", "explore", "examples/paper.toml", "--host", "0.0.0.0", "--no-browser"]
