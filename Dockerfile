# Builds one static binary and an image that holds it and the certificates to trust, nothing else: no shell, no libc, no curl.
FROM docker.io/library/rust:1.95-alpine AS build
RUN apk add --no-cache build-base ca-certificates
WORKDIR /src
COPY . .
RUN cargo build --locked --release --bin tidings && cp target/release/tidings /tidings && mkdir /data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /tidings /tidings
# A volume takes over whose it is.
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
WORKDIR /data
VOLUME /data
# In a container others can come in: keys are made with `tidings keys create`, or named by TIDINGS__BOOTSTRAP__API_KEY__FILE.
ENV TIDINGS__SERVER__BIND=0.0.0.0:8080 TIDINGS__SERVER__DATA_DIR=/data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["/tidings", "health"]
ENTRYPOINT ["/tidings"]
