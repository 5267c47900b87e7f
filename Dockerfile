# labelwise serve in a container: small, without root, without torch. It serves runs of `labelwise train` on frozen
# features, and every model that `labelwise export` wrote.
#   docker build -t labelwise .
#   docker compose up
# The base image is named by its tag; to pin the one that you have tested, name its digest:
#   docker build --build-arg BASE=python:3.11-slim@sha256:... -t labelwise .
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE.md ./
COPY deploy/hashes hashes
COPY src src
# Every package is held to its hash (make hashes).
RUN python -m venv /opt/build && python -m venv /opt/labelwise \
 && /opt/build/bin/pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r hashes/build.txt \
 && /opt/labelwise/bin/pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r hashes/server.txt \
 && /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/labelwise/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
 && /opt/labelwise/bin/pip check

FROM ${BASE}
RUN useradd --system --uid 10001 --no-create-home labelwise
COPY --from=build /opt/labelwise /opt/labelwise
# The index asks who the user is: a uid that compose chose has no name but this one.
ENV PATH=/opt/labelwise/bin:$PATH PYTHONUNBUFFERED=1 USER=labelwise HOME=/tmp \
    ORT_DISABLE_TELEMETRY=1 LABELWISE_HOST=0.0.0.0 LABELWISE_PORT=8000
USER labelwise
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD python -c "import os, urllib.request as u; \
      u.urlopen('http://127.0.0.1:' + os.environ['LABELWISE_PORT'] + '/health/ready', timeout=4)"
ENTRYPOINT ["labelwise", "serve"]
CMD ["/model"]
