#!/usr/bin/env bash
# Proves this tree on the GPU of this machine: build, GPU tests, memcheck over the parity tests, the main job.
# Usage: tests/gpu.sh FOLDER [STEP...]   logs and tables go to FOLDER; steps: build tests memcheck main host sm80 (default: all)
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: tests/gpu.sh FOLDER [STEP...]}
shift
steps=${*:-build tests memcheck main host sm80}
mkdir -p "$folder"
failed=0

step() {
  local name=$1 start=$SECONDS
  shift
  "$@" >"$folder/$name.log" 2>&1
  local rc=$?
  echo "== $name: exit $rc, $((SECONDS - start)) s"
  tail -n "${TAIL:-5}" "$folder/$name.log"
  [ "$rc" = 0 ] || failed=1
}

for name in $steps; do
  case $name in
    build) step build python3 setup.py build_ext --inplace ;;
    # Mostly the host's time: several processes share the GPU where pytest-xdist is installed.
    tests) step tests timeout 400 python3 -m pytest -q -m "gpu" $(python3 -c 'import xdist; print("-n8")' 2>/dev/null) ;;
    # Without the caching allocator every tensor is an allocation of its own, whose bounds the sanitizer knows; only
    # convt's kernels are instrumented.
    memcheck)
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 step memcheck timeout 400 compute-sanitizer --tool memcheck --error-exitcode 9 \
        --kernel-name kns=convt python3 -m pytest -q -m "gpu and not large" \
        tests/test_parity.py tests/test_depthwise.py -k "random_problems or configuration or misaligned"
      ;;
    main) step main timeout 300 python3 -m convt --output "$folder/first-light.txt" ;;
    host) step host python3 -m benchmarks.host "$folder/host.json" ;;
    # The sm_80 code, built alone in a copy of the tree; a later GPU compiles its PTX.
    sm80)
      copy=$(mktemp -d)
      git ls-files -z | xargs -0 cp --parents -t "$copy"
      step sm80 env -C "$copy" -u PYTHONPATH TORCH_CUDA_ARCH_LIST=8.0+PTX bash -c \
        "python3 setup.py build_ext --inplace >build.log 2>&1 && python3 -m convt --only kb69 --output '$copy/kb69.txt'"
      cp "$copy/kb69.txt" "$folder/sm80-kb69.txt"
      rm -rf "$copy"
      ;;
    *) echo "unknown step $name" >&2; exit 2 ;;
  esac
done
exit $failed
