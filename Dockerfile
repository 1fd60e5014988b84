# syntax=docker/dockerfile:1

# All dependencies come as wheels with their hashes; nothing is compiled, in no stage.
FROM python:3.11.17-slim-bookworm AS base
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ONLY_BINARY=:all:


# Builds the wheel. The links in bulklane/ become real files in it.
FROM base AS build
WORKDIR /source
COPY requirements/build.txt requirements/
RUN pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md CHANGELOG.md ./
COPY contracts contracts
COPY operations operations
COPY database database
COPY workflows workflows
COPY activities activities
COPY workers workers
COPY starter starter
COPY stack stack
COPY bulklane bulklane
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .


# An environment of its own, so that the last stage takes it over as one folder.
FROM base AS install
RUN python -m venv /opt/bulklane
ENV PATH=/opt/bulklane/bin:$PATH
COPY requirements/run.txt requirements/
RUN pip install --require-hashes -r requirements/run.txt
COPY --from=build /wheels /wheels
RUN pip install --no-deps /wheels/*.whl && pip check && pip uninstall --yes pip setuptools


FROM base AS run
RUN groupadd --system --gid 10001 bulklane \
    && useradd --system --uid 10001 --gid bulklane --no-create-home --home-dir /nonexistent bulklane \
    && install -d -o bulklane -g bulklane /data
COPY --from=install /opt/bulklane /opt/bulklane
# The example is for the demonstration. An image of one's own puts its module of operations here instead.
WORKDIR /app
COPY examples examples
ENV PATH=/opt/bulklane/bin:$PATH \
    PYTHONPATH=/app
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "bulklane.workers"]
