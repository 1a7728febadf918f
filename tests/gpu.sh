#!/usr/bin/env bash
# Proves this tree on the GPU of this machine.
# Usage: tests/gpu.sh FOLDER [STEP...]   logs and tables go to FOLDER; without a STEP, all of them in this order:
#   build      the extension, in place
#   tests      the GPU tests
#   memcheck   compute-sanitizer over the random problems and the forced configurations of every family
#   racecheck  the same tests: hazards in shared memory
#   synccheck  the same tests: barriers that not all threads reach
#   main       python -m convt
#   host       the host's time of a call
#   sm80       the sm_80 code, built alone in a copy of the tree
#   sweep      every configuration forced and timed; goes on with benchmarks/results/*-sweep.csv of the same source
# SANITIZER_SECONDS (400) and SWEEP_SECONDS (500) limit a step; CONVT_TEST_PROBLEMS (2) is the number of random problems
# of a test under the sanitizer; SWEEP_OPTIONS are further options of `python -m benchmarks sweep`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
folder=${1:?usage: tests/gpu.sh FOLDER [STEP...]}
shift
steps=${*:-build tests memcheck racecheck synccheck main host sm80 sweep}
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

# Only convt's kernels are instrumented.
sanitize() {
  local tests=(tests/test_parity.py) family
  # Families of one name for several architectures have their tests in one file.
  for family in $(basename -a csrc/kernels/*/ | sed 's/_sm[0-9]*$//' | sort -u); do
    [ ! -f "tests/test_$family.py" ] || tests+=("tests/test_$family.py")
  done
  CONVT_TEST_PROBLEMS=${CONVT_TEST_PROBLEMS:-2} timeout "${SANITIZER_SECONDS:-400}" \
    compute-sanitizer --tool "$1" --error-exitcode 9 --kernel-name kns=convt python3 -m pytest -q \
    -m "gpu and not large" "${tests[@]}" -k "random_problems or configuration or misaligned"
}

# Status 3 is a kernel that took the CUDA context with it or never returned, and above 128 are signals: the next process
# goes on without that configuration.
sweep() {
  local end=$((SECONDS + ${SWEEP_SECONDS:-500})) left try rc=3
  cp -n benchmarks/results/*-sweep.csv benchmarks/results/*-sweep.json "$folder" 2>/dev/null
  for try in 1 2 3 4 5; do
    left=$((end - SECONDS))
    [ "$left" -ge 30 ] || break
    echo "-- process $try, $left s left"
    # shellcheck disable=SC2086
    timeout -k 10 $((left + 60)) python3 -m benchmarks sweep --output "$folder" --resume --budget "$left" ${SWEEP_OPTIONS:-}
    rc=$?
    [ "$rc" = 3 ] || [ "$rc" -gt 128 ] || break
  done
  return "$rc"
}

for name in $steps; do
  case $name in
    build) step build python3 setup.py build_ext --inplace ;;
    # Mostly the host's time: several processes share the GPU where pytest-xdist is installed.
    tests) step tests timeout 400 python3 -m pytest -q -m "gpu" $(python3 -c 'import xdist; print("-n8")' 2>/dev/null) ;;
    # Without the caching allocator every tensor is an allocation of its own, whose bounds the sanitizer knows.
    memcheck) PYTORCH_NO_CUDA_MEMORY_CACHING=1 step memcheck sanitize memcheck ;;
    racecheck | synccheck) step "$name" sanitize "$name" ;;
    main) step main timeout 300 python3 -m convt --output "$folder/first-light.txt" ;;
    host) step host python3 -m benchmarks.host "$folder/host.json" ;;
    # A later GPU compiles the PTX of the sm_80 code.
    sm80)
      copy=$(mktemp -d)
      git ls-files -z | xargs -0 cp --parents -t "$copy"
      step sm80 env -C "$copy" -u PYTHONPATH TORCH_CUDA_ARCH_LIST=8.0+PTX bash -c \
        "python3 setup.py build_ext --inplace >build.log 2>&1 || { tail -n 40 build.log; exit 1; }
        python3 -m convt --only kb69 --output '$copy/sm80-kb69.txt'"
      cp "$copy/sm80-kb69.txt" "$folder"
      rm -rf "$copy"
      ;;
    sweep) step sweep sweep ;;
    *) echo "unknown step $name" >&2; exit 2 ;;
  esac
done
exit $failed
