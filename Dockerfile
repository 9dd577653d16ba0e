# sluice for CPUs, on Debian 12, as a user without rights:
#
#   docker build -t sluice --build-arg COMMIT=$(git rev-parse --short=12 HEAD) .
#   docker run --rm -v "$PWD:/work" -v sluice-cache:/cache sluice run -m MODEL -i in.jsonl -o out.jsonl --mem-ram 4G
#
# The user of the container needs to write to the folder at /work: add --user $(id -u) where that is yours. Docker refuses io_uring;
# sluice then reads files with threads (--security-opt seccomp=unconfined allows io_uring).
FROM debian:12-slim AS build
WORKDIR /src
COPY .ci/deps.sh .ci/
RUN .ci/deps.sh
COPY . .
ARG COMMIT=unknown
RUN make CUDA=0 COMMIT=$COMMIT PREFIX=/usr DESTDIR=/out install

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
        libjansson4 libpcre2-8-0 libutf8proc2 liburing2 libhwloc15 libzstd1 libisal2 && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --uid 1000 --create-home sluice && \
    install -d -m 1777 /cache /work
COPY --from=build /out/ /
ENV SLUICE_CACHE_DIR=/cache
VOLUME /cache
USER sluice
WORKDIR /work
ENTRYPOINT ["sluice"]
CMD ["help"]
