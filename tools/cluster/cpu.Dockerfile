# The whole lab on a CPU:
#     docker build -f tools/cluster/cpu.Dockerfile -t scalelab:cpu .
#     docker run --rm --shm-size=8g -v "$PWD/runs:/lab/runs" scalelab:cpu run quickstart
FROM python:3.13-slim-trixie
RUN apt-get update && apt-get install -y --no-install-recommends bash bubblewrap g++ git libnuma1 nodejs \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /lab
COPY pyproject.toml setup.py README.md LICENSE ./
COPY requirements requirements
COPY tools/install.sh tools/venv.sh tools/apt_install.sh tools/
COPY scalelab scalelab
COPY moe moe
COPY tasks tasks
COPY experiments experiments
RUN tools/install.sh
ENTRYPOINT [".venv/bin/scalelab"]
CMD ["--help"]
