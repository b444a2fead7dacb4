FROM rust:1-trixie AS builder
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgeos-dev make pkg-config \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
WORKDIR /build

# The dependencies in a layer of their own, which lasts until Cargo.toml or Cargo.lock changes.
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src tests/load \
 && echo 'fn main() {}' > src/main.rs \
 && touch src/lib.rs tests/main.rs tests/load/main.rs \
 && cargo build --release --locked --bin hexlane

# Cargo goes by the time of change, and the copied files may be older than the stand-ins above.
COPY src src
RUN touch src/main.rs src/lib.rs \
 && cargo build --release --locked --bin hexlane

FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libgeos-c1t64 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=builder /build/target/release/hexlane /usr/local/bin/hexlane
USER 65532:65532
EXPOSE 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["hexlane"]
CMD ["worker"]
