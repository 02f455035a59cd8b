// Runs a product C[m, n] = A[m, k] B[n, k] that tvm_hopper.save wrote: run_saved FILE.so NAME M N K
#include <dlfcn.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>
namespace ffi = tvm::ffi;

int main(int argc, char** argv) try {
  if (argc != 6) return fprintf(stderr, "usage: run_saved FILE.so NAME M N K\n"), 2;
  if (!dlopen("libtvm_runtime_cuda.so", RTLD_NOW | RTLD_GLOBAL))
    return fprintf(stderr, "%s\n", dlerror()), 1;
  ffi::Module saved = ffi::Module::LoadFromFile(argv[1]);
  saved->GetFunction("tvm_hopper_check", true).value()(0);  // an error on another chip
  const int64_t m = atoll(argv[3]), n = atoll(argv[4]), k = atoll(argv[5]);
  const DLDevice gpu{kDLCUDA, 0};
  const auto empty = ffi::Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  const auto to_gpu = ffi::Function::GetGlobalRequired("runtime.TVMTensorCopyFromBytes");
  const auto to_host = ffi::Function::GetGlobalRequired("runtime.TVMTensorCopyToBytes");
  const uint16_t halves[] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000};  // -2 to 2
  std::vector<int8_t> values[2] = {std::vector<int8_t>(m * k), std::vector<int8_t>(n * k)};
  std::vector<ffi::Any> tensors;
  for (auto& x : values) {
    std::vector<uint16_t> bits(x.size());
    for (size_t i = 0; i < x.size(); ++i) bits[i] = halves[2 + (x[i] = rand() % 5 - 2)];
    const ffi::Shape shape{&x == values ? m : n, k};
    tensors.push_back(empty(shape, DLDataType{kDLFloat, 16, 1}, gpu, nullptr));
    to_gpu(tensors.back(), static_cast<void*>(bits.data()), bits.size() * 2);
  }
  std::vector<float> c(m * n, -1.0f);
  tensors.push_back(empty(ffi::Shape{m, n}, DLDataType{kDLFloat, 32, 1}, gpu, nullptr));
  to_gpu(tensors[2], static_cast<void*>(c.data()), c.size() * 4);
  saved->GetFunction(argv[2]).value()(tensors[0], tensors[1], tensors[2]);
  to_host(tensors[2], static_cast<void*>(c.data()), c.size() * 4);
  for (int64_t at = 0; at < m * n; ++at) {
    const int8_t *a = &values[0][at / n * k], *b = &values[1][at % n * k];
    int sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += a[i] * b[i];
    if (sum != c[at]) return fprintf(stderr, "C[%ld]: %g, not %d\n", at, c[at], sum), 1;
  }
  return printf("%ld elements are right\n", m * n), 0;
} catch (const ffi::Error& error) {
  return fprintf(stderr, "%s\n", error.what()), 1;
}
