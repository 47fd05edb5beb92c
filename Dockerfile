# The demo and the explorer in a box. No test builds it; docs/install.md says what that means.
#   docker build --target demo -t airfed-demo .         docker run --rm airfed-demo
#   docker build --target explorer -t airfed-explorer . docker run --rm -p 127.0.0.1:8080:8080 airfed-explorer
# pip may be told where a torch without GPU libraries is: --build-arg PIP_EXTRA_INDEX_URL=...
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
# The page listens beyond its own machine here, so it demands the token that it prints.
CMD ["airfed", "explore", "examples/paper.toml", "--host", "0.0.0.0", "--no-browser"]
