rm -rf build/lib* build/linux* convt/*.so
mkdir -p /tmp/wh; for w in build/wh/*.whl; do python3 -m zipfile -e $w /tmp/wh; done
export PYTHONPATH=/tmp/wh
rm -rf /tmp/s80; cp -r . /tmp/s80
( cd /tmp/s80; TORCH_CUDA_ARCH_LIST=8.0+PTX MAX_JOBS=6 python3 setup.py build_ext --inplace > /tmp/b80.log 2>&1; tail -1 /tmp/b80.log | cut -c1-200 ) &
TORCH_CUDA_ARCH_LIST=9.0a MAX_JOBS=16 python3 setup.py build_ext --inplace > /tmp/b.log 2>&1; tail -1 /tmp/b.log | cut -c1-200
date +%T
timeout 200 python3 -m pytest -q -n14 tests/test_implicit_gemm.py tests/test_column.py tests/test_parity.py -k "not emulator" > /tmp/t.log 2>&1; tail -6 /tmp/t.log | cut -c1-300; grep -E "^(FAILED|ERROR)" /tmp/t.log | head -20
date +%T
python3 -m benchmarks run --row-ms 5 --output $OUT > /tmp/r.log 2>&1; tail -2 /tmp/r.log | cut -c1-300
date +%T
