// (a) How many bytes does a TMA load post for a box that is partly or wholly out of bounds?
//
// The copy is issued first and left to land; then one arrive.expect_tx(n) closes the phase exactly
// if n equals what was posted. "first" is the order of a real kernel: expect, then copy.
#include "host.cuh"
#include "ptx.cuh"

constexpr int kBox = 64, kBytes = kBox * kBox * 2, kWidth = 96;
constexpr uint16_t kPoison = 0xcdcd;

struct Result {
  int completed, zeros, values, poison;
};

__global__ void load(const __grid_constant__ CUtensorMap map, int x, int y, uint32_t expect,
                     bool expect_first, Result* result) {
  __shared__ alignas(1024) uint16_t tile[kBox * kBox];
  __shared__ uint64_t full;
  for (int i = threadIdx.x; i < kBox * kBox; i += blockDim.x) tile[i] = kPoison;
  if (threadIdx.x == 0) mbarrier_init(&full, 1);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (expect_first) arrive_expect_tx(&full, expect);
    tma_load_2d(tile, &map, x, y, &full);
    if (!expect_first) {
      delay_ns(20'000);
      arrive_expect_tx(&full, expect);
    }
    result->completed = wait_limited(&full, 0, 50'000);
    delay_ns(20'000);
    for (int i = 0; i < kBox * kBox; ++i) {
      uint16_t value = ((volatile uint16_t*)tile)[i];
      ++(value == 0 ? result->zeros : value == kPoison ? result->poison : result->values);
    }
  }
}

int main() {
  auto* data = device_words<uint16_t>(kWidth * kWidth * 2, [](size_t) { return 0x3c003c00u; });
  auto* result = device_alloc<Result>(1);
  struct Tile {
    const char* name;
    int x, y, inside;  // elements in bounds
  };
  const Tile tiles[] = {{"inside", 0, 0, kBox * kBox},
                        {"right edge", 64, 0, 32 * 64},
                        {"corner", 64, 64, 32 * 32},
                        {"negative start", -40, -56, 24 * 8},
                        {"wholly outside", 128, 192, 0}};
  for (auto swizzle : {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B}) {
    CUtensorMap map;
    Map2d shape;
    shape.width = shape.height = kWidth;
    shape.swizzle = swizzle;
    if (encode(&map, data, shape) != CUDA_SUCCESS) return 1;
    for (const Tile& tile : tiles) {
      const int clipped = tile.inside * 2, repeats = 20;
      auto count = [&](uint32_t expect, bool first, Result* last) {
        int completed = 0;
        for (int i = 0; i < repeats; ++i) {
          check(cudaMemset(result, 0, sizeof(Result)), "cudaMemset");
          load<<<1, 128>>>(map, tile.x, tile.y, expect, first, result);
          check(cudaDeviceSynchronize(), "load");
          *last = to_host(result, 1)[0];
          completed += last->completed;
        }
        return completed;
      };
      Result last;
      const bool plain = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE;
      Line line("a", std::string(tile.name) + (plain ? ", no swizzle" : ", swizzle 128"));
      line.add("box_bytes", kBytes).add("bytes_in_bounds", clipped).add("n_tries", repeats);
      if (clipped != kBytes) {
        line.add("n_closed_by_bytes_in_bounds", count(clipped, false, &last));
        line.add("n_closed_by_bytes_in_bounds_expected_first", count(clipped, true, &last));
      }
      line.add("n_closed_by_box_less_16", count(kBytes - 16, false, &last));
      line.add("n_closed_by_box_expected_first", count(kBytes, true, &last));
      line.add("n_closed_by_box", count(kBytes, false, &last));
      line.add("elements_read", last.values).add("elements_zero", last.zeros);
      line.add("elements_untouched", last.poison).add("end", "ok").print();
    }
  }
}
