// Loads of a product without its multiplications: what TMA and L2 give, by pitch, box and cluster.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstdint>
#include <vector>
#include <algorithm>

#define CHECK(x) do { auto e = (x); if (e != 0) { printf("error %d at %d\n", (int)e, __LINE__); exit(1);} } while (0)

__device__ uint32_t sm(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ void mwait(uint32_t bar, int parity) {
  asm volatile("{\n.reg .pred p;\nL:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra L;\n}" :: "r"(bar), "r"(parity) : "memory");
}
__device__ void tload(uint32_t dst, const CUtensorMap* map, int x, int y, uint32_t bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
    :: "r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ void tloadm(uint32_t dst, const CUtensorMap* map, int x, int y, uint32_t bar, uint16_t mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
    :: "r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask) : "memory");
}
// One operand: `boxes` boxes of bx x by; of each step box i lies at (x, y) by major.
struct Side { int kmajor, rows, bx, by, share; };  // share: blocks that share this operand's loads

__global__ void __launch_bounds__(64) loads(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B,
    Side a, Side b, int steps, int stages, int tm, int tn, int group, int cm, int cn) {
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ uint64_t full[8], empty[8];
  int c = cm * cn;
  int rank = blockIdx.x % c, sup = blockIdx.x / c;
  int sm_ = (tm + cm - 1) / cm, sn_ = (tn + cn - 1) / cn;
  int width = group * sn_, g = sup / width, first = g * group, size = min(group, sm_ - first);
  int ti = (first + (sup % width) % size) * cm + rank % cm, tj = (sup % width) / size * cn + rank / cm;
  int abytes = a.rows * 128, bbytes = b.rows * 128, slot = abytes + bbytes;
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(sm(&full[s])));
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(sm(&empty[s])), "r"(c));
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  if (c > 1) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  else __syncthreads();
  if (threadIdx.x == 0) {
    uint16_t amask = 0, bmask = 0;
    for (int j = 0; j < cn; ++j) amask |= 1 << (rank % cm + j * cm);     // same rows: blocks along n
    for (int i = 0; i < cm; ++i) bmask |= 1 << (i + rank / cm * cm);
    int ra = rank / cm, rb = rank % cm;
    int abox = a.rows * 64 / (a.bx * a.by), bbox = b.rows * 64 / (b.bx * b.by);
    for (int k = 0; k < steps; ++k) {
      int s = k % stages;
      mwait(sm(&empty[s]), (k / stages + 1) % 2);
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(sm(&full[s])), "r"(slot) : "memory");
      uint32_t bar = sm(&full[s]), dst = sm(smem) + s * slot;
      int n = abox / a.share;
      for (int i = 0; i < n; ++i) {
        int box = (a.share > 1 ? ra * n : 0) + i, x, y;
        if (a.kmajor) { x = k * 64; y = ti * a.rows + box * a.by; }
        else { int per = 64 / a.by; x = ti * a.rows + box / per * a.bx; y = k * 64 + box % per * a.by; }
        uint32_t d = dst + box * a.bx * a.by * 2;
        if (a.share > 1) tloadm(d, &A, x, y, bar, amask); else tload(d, &A, x, y, bar);
      }
      n = bbox / b.share;
      for (int i = 0; i < n; ++i) {
        int box = (b.share > 1 ? rb * n : 0) + i, x, y;
        if (b.kmajor) { x = k * 64; y = tj * b.rows + box * b.by; }
        else { int per = 64 / b.by; x = tj * b.rows + box / per * b.bx; y = k * 64 + box % per * b.by; }
        uint32_t d = dst + abytes + box * b.bx * b.by * 2;
        if (b.share > 1) tloadm(d, &B, x, y, bar, bmask); else tload(d, &B, x, y, bar);
      }
    }
  } else if (threadIdx.x >= 32 && threadIdx.x < 32 + c) {
    int peer = threadIdx.x - 32;
    for (int k = 0; k < steps; ++k) {
      int s = k % stages;
      mwait(sm(&full[s]), k / stages % 2);
      uint32_t r;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(sm(&empty[s])), "r"(peer));
      asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(r) : "memory");
    }
  }
  __syncwarp();
  if (c > 1) asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
  const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
Encode encode;
CUtensorMap make(void* p, int inner, int outer, int bx, int by, int promo) {
  CUtensorMap m; cuuint64_t dims[2] = {(cuuint64_t)inner, (cuuint64_t)outer}; cuuint64_t st[1] = {(cuuint64_t)inner * 2};
  cuuint32_t box[2] = {(cuuint32_t)bx, (cuuint32_t)by}, es[2] = {1, 1};
  auto sw = bx * 2 == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : bx * 2 == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
  CHECK(encode(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, dims, st, box, es, CU_TENSOR_MAP_INTERLEAVE_NONE, sw,
    (CUtensorMapL2promotion)promo, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return m;
}
int main() {
  void* f; cudaDriverEntryPointQueryResult q;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &q)); encode = (Encode)f;
  uint8_t *pa, *pb, *trash; size_t big = 256u << 20;
  CHECK(cudaMalloc(&pa, big)); CHECK(cudaMalloc(&pb, big)); CHECK(cudaMalloc(&trash, 128u << 20));
  cudaMemset(pa, 0, big); cudaMemset(pb, 0, big);
  CHECK(cudaFuncSetAttribute(loads, cudaFuncAttributeMaxDynamicSharedMemorySize, 230000));
  CHECK(cudaFuncSetAttribute(loads, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaEvent_t e0, e1; cudaEventCreate(&e0); cudaEventCreate(&e1);
  printf("M N K layout | BM BN stages span promo | cm cn | us cold, us warm | bytes/cycle/SM warm at 1755 MHz\n");
  struct Case { int M, N, K, ak, bk, BM, BN; };
  std::vector<Case> cases = {
    {552, 3576, 1928, 1, 0, 192, 96}, {552, 3576, 1928, 1, 0, 192, 128}, {552, 3576, 1928, 1, 0, 128, 128},
    {552, 3584, 1920, 1, 0, 192, 96}, {552, 3584, 1920, 1, 0, 192, 128}, {552, 3576, 1920, 1, 0, 192, 128}, {552, 3584, 1928, 1, 0, 192, 128},
    {1512, 3272, 5432, 0, 0, 256, 160}, {1512, 3272, 5432, 0, 0, 256, 128}, {1536, 3328, 5440, 0, 0, 256, 128},
    {456, 7272, 4472, 1, 1, 128, 224}, {456, 7272, 4472, 1, 1, 256, 128}, {456, 7272, 4480, 1, 1, 256, 128},
    {456, 7272, 4496, 1, 1, 256, 128}, {456, 7272, 4512, 1, 1, 256, 128},
    {7168, 888, 5920, 0, 0, 128, 128}, {7168, 896, 5920, 0, 0, 128, 128},
  };
  int cl[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}};
  for (auto& t : cases) for (int promo : {2, 0, 3}) for (auto& c : cl) {
    int cm = c[0], cn = c[1];
    if (promo != 2 && cm * cn > 2) continue;
    auto side = [&](int kmajor, int rows, int share) {
      Side s; s.kmajor = kmajor; s.rows = rows; s.share = share;
      if (kmajor) { s.bx = 64; s.by = rows / share; }
      else {
        s.bx = rows % 64 == 0 ? 64 : 32; s.by = 64;
        int boxes = rows / s.bx;
        while (boxes % share) { s.by /= 2; boxes *= 2; }
      }
      return s;
    };
    Side a = side(t.ak, t.BM, cn), b = side(t.bk, t.BN, cm);
    if (a.by % 8 || b.by % 8) continue;
    CUtensorMap A = t.ak ? make(pa, t.K, t.M, a.bx, a.by, promo) : make(pa, t.M, t.K, a.bx, a.by, promo);
    CUtensorMap B = t.bk ? make(pb, t.K, t.N, b.bx, b.by, promo) : make(pb, t.N, t.K, b.bx, b.by, promo);
    int tm = (t.M + t.BM - 1) / t.BM, tn = (t.N + t.BN - 1) / t.BN;
    int sm_ = (tm + cm - 1) / cm, sn_ = (tn + cn - 1) / cn, steps = (t.K + 63) / 64;
    int slot = (t.BM + t.BN) * 128, stages = std::min(8, 229376 / slot);
    cudaLaunchConfig_t cfg = {}; cfg.gridDim = dim3(sm_ * sn_ * cm * cn); cfg.blockDim = dim3(64); cfg.dynamicSmemBytes = stages * slot;
    cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeClusterDimension; at[0].val.clusterDim = {(unsigned)(cm * cn), 1, 1};
    cfg.attrs = at; cfg.numAttrs = 1;
    auto run = [&] { CHECK(cudaLaunchKernelEx(&cfg, loads, A, B, a, b, steps, stages, tm, tn, 8, cm, cn)); };
    float cold = 1e9, warm = 1e9; float ms;
    for (int i = 0; i < 4; ++i) {
      cudaMemsetAsync(trash, i, 128u << 20);
      cudaEventRecord(e0); run(); cudaEventRecord(e1); CHECK(cudaDeviceSynchronize());
      cudaEventElapsedTime(&ms, e0, e1); cold = std::min(cold, ms);
    }
    run();
    for (int j = 0; j < 2; ++j) {
      cudaEventRecord(e0); for (int i = 0; i < 8; ++i) run(); cudaEventRecord(e1); CHECK(cudaDeviceSynchronize());
      cudaEventElapsedTime(&ms, e0, e1); warm = std::min(warm, ms / 8);
    }
    double bytes = (double)slot * steps * sm_ * sn_ * cm * cn / 132;
    printf("%d %d %d %s%s | %d %d %d %dx%d %dx%d %d | %d %d | %.2f %.2f | %.1f\n", t.M, t.N, t.K, t.ak ? "N" : "T", t.bk ? "T" : "N", t.BM, t.BN, stages,
      a.bx, a.by, b.bx, b.by, promo, cm, cn, cold * 1e3, warm * 1e3, bytes / (warm * 1e-3 * 1755e6));
  }
}
