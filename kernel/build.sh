#!/bin/sh
# Builds the kernel. Usage: kernel/build.sh [cargo arguments]. The image is target/bare/kernel/freehold-kernel.
cd "$(dirname "$0")/.." || exit 1
export RUSTFLAGS="--cfg bare_metal -Cno-redzone=yes"
exec cargo "${VERB:-build}" -p freehold-kernel --profile kernel --target-dir target/bare "$@"
