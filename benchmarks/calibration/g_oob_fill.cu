// (g) What lies in a tile where the box was out of bounds, by element type and fill mode, and which
// pairs does the encoder refuse? FP8 has no type of its own in a tensor map: it is UINT8 there.
#include <cstring>

#include "host.cuh"
#include "ptx.cuh"

constexpr int kBoxBytes = 128, kBoxRows = 8, kRows = 4;

__global__ void load(const __grid_constant__ CUtensorMap map, unsigned char* out) {
  __shared__ alignas(1024) unsigned char tile[kBoxBytes * kBoxRows];
  __shared__ uint64_t full;
  for (int i = threadIdx.x; i < kBoxBytes * kBoxRows; i += blockDim.x) tile[i] = 0xcd;
  if (threadIdx.x == 0) mbarrier_init(&full, 1);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    arrive_expect_tx(&full, kBoxBytes * kBoxRows);
    tma_load_2d(tile, &map, 0, 0, &full);
  }
  if (!wait_limited(&full, 0, 1'000'000)) return;
  for (int i = threadIdx.x; i < kBoxBytes * kBoxRows; i += blockDim.x) out[i] = tile[i];
}

int main() {
  struct Type {
    const char* name;
    CUtensorMapDataType code;
    uint32_t bytes;
  };
  const Type types[] = {{"UINT8 (int8, fp8)", CU_TENSOR_MAP_DATA_TYPE_UINT8, 1},
                        {"UINT16", CU_TENSOR_MAP_DATA_TYPE_UINT16, 2},
                        {"INT32", CU_TENSOR_MAP_DATA_TYPE_INT32, 4},
                        {"FLOAT16", CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2},
                        {"BFLOAT16", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2},
                        {"FLOAT32", CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4},
                        {"TFLOAT32", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4},
                        {"FLOAT64", CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 8}};
  auto* data = device_words<unsigned char>(kBoxBytes * kRows, [](size_t) { return 0x40404040u; });
  auto* out = device_alloc<unsigned char>(kBoxBytes * kBoxRows);
  for (const Type& type : types) {
    for (auto fill : {CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA}) {
      Map2d shape;
      shape.type = type.code;
      shape.element = type.bytes;
      shape.width = shape.box_width = kBoxBytes / type.bytes;
      shape.height = kRows;
      shape.box_height = kBoxRows;
      shape.fill = fill;
      CUtensorMap map;
      const CUresult encoded = encode(&map, data, shape);
      Line line("g", std::string(type.name) + ", fill " +
                         (fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ? "NONE" : "NAN"));
      line.add("encoder", encoded == CUDA_SUCCESS ? "accepts"
                                                  : "refuses, " + std::to_string(encoded));
      if (encoded == CUDA_SUCCESS) {
        check(cudaMemset(out, 0xcd, kBoxBytes * kBoxRows), "cudaMemset");
        load<<<1, 128>>>(map, out);
        check(cudaDeviceSynchronize(), "load");
        const auto got = to_host(out, kBoxBytes * kBoxRows);
        char bits[17] = "";
        for (uint32_t i = 0; i < type.bytes; ++i)
          std::snprintf(bits + 2 * i, 3, "%02x", got[kBoxBytes * kRows + type.bytes - 1 - i]);
        bool uniform = true;
        for (int i = kBoxBytes * kRows; i < kBoxBytes * kBoxRows; ++i)
          uniform &= got[i] == got[kBoxBytes * kRows + i % type.bytes];
        line.add("out_of_bounds_element", std::string("0x") + bits);
        line.add("all_alike", uniform ? "yes" : "no");
      }
      line.add("end", "ok").print();
    }
  }
}
