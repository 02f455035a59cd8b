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
  saved->GetFunction("tvm_hopper_check").value()(0);  // an error on another chip
  const int64_t m = atoll(argv[3]), n = atoll(argv[4]), k = atoll(argv[5]);
  const DLDevice gpu{kDLCUDA, 0};
  const auto empty = ffi::Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  const auto to_gpu = ffi::Function::GetGlobalRequired("runtime.TVMTensorCopyFromBytes");
  const auto to_host = ffi::Function::GetGlobalRequired("runtime.TVMTensorCopyToBytes");
  const uint16_t halves[] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000};  // -2 to 2
  std::vector<uint16_t> bits[2] = {std::vector<uint16_t>(m * k), std::vector<uint16_t>(n * k)};
  std::vector<ffi::Any> tensors;
  for (auto& x : bits) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = halves[rand() % 5];
    tensors.push_back(empty(ffi::Shape{&x == bits ? m : n, k}, DLDataType{kDLFloat, 16, 1}, gpu, nullptr));
    to_gpu(tensors.back(), static_cast<void*>(x.data()), x.size() * 2);
  }
  std::vector<float> c(m * n, -1.0f);
  tensors.push_back(empty(ffi::Shape{m, n}, DLDataType{kDLFloat, 32, 1}, gpu, nullptr));
  to_gpu(tensors[2], static_cast<void*>(c.data()), c.size() * 4);
  saved->GetFunction(argv[2]).value()(tensors[0], tensors[1], tensors[2]);
  to_host(tensors[2], static_cast<void*>(c.data()), c.size() * 4);
  const auto value = [&](uint16_t x) { int i = 0; while (halves[i] != x) ++i; return i - 2; };
  for (int64_t at = 0; at < m * n; ++at) {
    int sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += value(bits[0][at / n * k + i]) * value(bits[1][at % n * k + i]);
    if (sum != c[at]) return fprintf(stderr, "C[%ld, %ld] = %g, not %d\n", at / n, at % n, c[at], sum), 1;
  }
  return printf("%ld elements are right\n", m * n), 0;
} catch (const ffi::Error& error) {
  return fprintf(stderr, "%s\n", error.what()), 1;
}
