set -u
export CONVT_TEST_PROBLEMS=2
( timeout 40 python3 -m pytest -q -x -n 10 -m gpu tests/test_column.py tests/test_large_stride.py -k "random or nan or images" > $OUT/tests.log 2>&1; tail -5 $OUT/tests.log; echo tests $SECONDS )
timeout 60 python3 .co_bench.py $OUT/bench.csv "pix2pix_last;fcn32s;pwcnet.upfeat3/infer;mednext2d.out1x1/infer;pwcnet.upfeat6/infer;dcunet20_large.dec9/train;gtcrn.point_conv1/infer;clipseg.complex1/train;pwcnet.upfeat6/train;fsrcnn_x4;tfgridnet.deconv/train;clipseg.complex1/infer;slot_attention.conv6/infer;sam2.upscale1/infer;ulunas.xdws_dconv5/infer;gtcrn.depth_d5/infer;worldmodels_vae.deconv4/infer;ifrnet.decoder1/train;pwcnet.upfeat3/train;dcgan.g5;ulunas.last/train" column,large_stride/k tf32,fp16,fp32 28 > $OUT/bench.log 2>&1; tail -20 $OUT/bench.log; echo bench $SECONDS
cat > n.py <<'P'
import sys, torch, convt
from convt import _C
from benchmarks.cases import load_cases
cases = {c.case: c for c in load_cases()}
torch.backends.cudnn.allow_tf32 = True
for a in sys.argv[1:]:
    name, dt, conf = a.split(':')
    c = cases[name]; d = torch.float32 if dt == 'tf32' else torch.float16
    x = torch.randn(c.n, c.cin, c.h, c.w, device='cuda', dtype=d); w = torch.randn(c.cin, c.cout // c.groups, c.kh, c.kw, device='cuda', dtype=d)
    _C.force_configuration(conf)
    convt.conv_transpose2d(x, w, None, stride=c.stride, padding=c.padding, output_padding=c.output_padding, dilation=(c.dh, c.dw), groups=c.groups)
    torch.cuda.synchronize()
P
timeout 60 ncu --clock-control none --section SourceCounters --section WarpStateStats --section SpeedOfLight --section LaunchStats --section MemoryWorkloadAnalysis -k regex:column_kernel\|large_stride -o $OUT/p python3 n.py pix2pix_last:tf32:column/n48_p192 fcn32s:tf32:large_stride/k96 fcn32s:fp16:large_stride/k48 pwcnet.upfeat3/infer:tf32:column/n32_p64 mednext2d.out1x1/infer:tf32:column/n16_p512 dcunet20_large.dec9/train:fp16:column/n16_p512 dpot.reconstruct/train:fp16:large_stride/tile_64x128 dpot.reconstruct/infer:tf32:large_stride/tile_64x64 pwcnet.upfeat6/infer:tf32:column/n32_p32 > $OUT/ncu.log 2>&1
ncu -i $OUT/p.ncu-rep --page source --csv > $OUT/source.csv 2>>$OUT/ncu.log; ncu -i $OUT/p.ncu-rep --page details --csv > $OUT/details.csv 2>>$OUT/ncu.log; rm -f $OUT/p.ncu-rep; echo ncu $SECONDS
