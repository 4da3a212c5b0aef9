#!/bin/sh
# Everything that a GPU is measured for, in a few minutes: tokens/s, MFU, memory and profiles of the
# preset 1b, compiled and not. Elsewhere: benchmarks/gpu1b.sh --device cpu --preset stage0
exec "${PYTHON:-python}" -m fractus_bench.gpu1b "$@"
