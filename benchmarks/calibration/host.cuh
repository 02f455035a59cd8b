// The host's side of an experiment: tensor maps, and an end of every run that prints.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// A failure of the experiment itself, not an outcome.
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T* device_alloc(size_t count) {
  T* p;
  check(cudaMalloc(&p, count * sizeof(T)), "cudaMalloc");
  check(cudaMemset(p, 0, count * sizeof(T)), "cudaMemset");
  return p;
}

template <typename T>
std::vector<T> to_host(const T* p, size_t count) {
  std::vector<T> out(count);
  check(cudaMemcpy(out.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return out;
}

// Fill with 32-bit words f(i).
template <typename T, typename F>
T* device_words(size_t bytes, F f) {
  std::vector<uint32_t> words(bytes / 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = f(i);
  T* p = device_alloc<T>(bytes / sizeof(T));
  check(cudaMemcpy(p, words.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return p;
}

struct Map2d {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  uint32_t element = 2;  // bytes
  uint64_t width = 0, height = 0;
  uint32_t box_width = 64, box_height = 64;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

inline CUresult encode(CUtensorMap* map, void* data, const Map2d& m) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found),
        "cuTensorMapEncodeTiled");
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                              const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                              const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  cuuint64_t dims[2] = {m.width, m.height}, strides[1] = {m.width * m.element};
  cuuint32_t box[2] = {m.box_width, m.box_height}, steps[2] = {1, 1};
  return ((Encode)entry)(map, m.type, 2, data, dims, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, m.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         m.fill);
}

// Wait for the launched kernel; return "ok" or the name of what went wrong.
inline std::string end_of_kernel() {
  cudaError_t launch = cudaGetLastError();
  cudaError_t run = cudaDeviceSynchronize();
  cudaError_t error = launch != cudaSuccess ? launch : run;
  return error == cudaSuccess ? "ok" : cudaGetErrorName(error);
}

inline int multiprocessors() {
  int count;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "no GPU");
  return count;
}

// One outcome: a JSON line. Counts start with n_, extremes with min_ and max_.
struct Line {
  std::string text;
  Line(const char* point, const std::string& variant) {
    text = std::string("{\"point\": \"") + point + "\", \"variant\": \"" + variant + "\"";
  }
  Line& add(const std::string& name, const std::string& value) {
    text += ", \"" + name + "\": \"" + value + "\"";
    return *this;
  }
  Line& add(const std::string& name, long long value) {
    text += ", \"" + name + "\": " + std::to_string(value);
    return *this;
  }
  void print() {
    std::printf("%s}\n", text.c_str());
    std::fflush(stdout);
  }
};
