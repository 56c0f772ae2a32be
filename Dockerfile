# moeprobe on a CPU. Build: docker build -t moeprobe .   Demo: docker run --rm -v "$PWD/out:/data/reports" moeprobe demo
# A release names the image that it was tried with: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim
FROM $BASE

# Not root: what the container writes into a mounted folder belongs to the user of the container.
RUN useradd --create-home --uid 1000 moeprobe && mkdir /data && chown moeprobe /data
WORKDIR /opt/moeprobe
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY configs configs
COPY moeprobe moeprobe
# A build of PyTorch for CPUs is a third of the size: --build-arg PIP_EXTRA_INDEX_URL=… names where to find one.
ARG PIP_EXTRA_INDEX_URL=
RUN PIP_CONSTRAINT=/opt/moeprobe/constraints.txt python -m pip install --no-cache-dir --disable-pip-version-check .

USER 1000
WORKDIR /data
ENTRYPOINT ["moeprobe"]
CMD ["--help"]
