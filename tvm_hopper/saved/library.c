/* What a saved file holds next to TVM's launch code: the modules that it imports, and a check of
 * the chip. Compiled by `saving.py`, as C or C++, with the names in capitals defined. */
#include <stdio.h>
#include <tvm/ffi/c_api.h>

__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    ".globl __tvm_ffi__library_bin\n"
    "__tvm_ffi__library_bin: .incbin \"" MODULES "\"\n"
    ".previous\n");

enum { CUDA = 2, COMPUTE_VERSION = 4, DEVICE_NAME = 5 };

static const char* text_of(const TVMFFIAny* value) {
  if (value->type_index == kTVMFFISmallStr) return value->v_bytes;
  if (value->type_index == kTVMFFIStr) return TVMFFIBytesGetByteArrayPtr(value->v_obj)->data;
  return "no device";
}

static int attribute_of(int64_t device, int64_t attribute, TVMFFIAny* result) {
  const TVMFFIByteArray name = {"runtime.GetDeviceAttr", sizeof("runtime.GetDeviceAttr") - 1};
  TVMFFIObjectHandle function = 0;
  TVMFFIAny arguments[3] = {{0}, {0}, {0}};
  const int64_t values[3] = {CUDA, device, attribute};
  int i, status;
  if (TVMFFIFunctionGetGlobal(&name, &function) != 0) return -1;
  if (function == 0) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError",
                                 NAME ": found no libtvm_runtime.so in this process; need it and "
                                      "libtvm_runtime_cuda.so to launch kernels");
    return -1;
  }
  for (i = 0; i < 3; ++i) {
    arguments[i].type_index = kTVMFFIInt;
    arguments[i].v_int64 = values[i];
  }
  status = TVMFFIFunctionCall(function, arguments, 3, result);
  TVMFFIObjectDecRef(function);
  return status;
}

static int version_of(const char* text) {
  int major = 0, minor = 0;
  sscanf(text, "%d.%d", &major, &minor);
  return 10 * major + minor;
}

/* tvm_hopper_check(device=0): an error unless the code runs on that device. */
#ifdef __cplusplus
extern "C"
#endif
    TVM_FFI_DLL_EXPORT int
    __tvm_ffi_tvm_hopper_check(void* self, const TVMFFIAny* args, int32_t count,
                               TVMFFIAny* result) {
  const int64_t device = count > 0 && args[0].type_index == kTVMFFIInt ? args[0].v_int64 : 0;
  TVMFFIAny version = {0}, chip = {0};
  char message[512];
  int found;
  (void)self;
  result->type_index = kTVMFFINone;
  if (attribute_of(device, COMPUTE_VERSION, &version) != 0) return -1;
  found = version_of(text_of(&version));
  if (version.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(version.v_obj);
  if (found == CAPABILITY || (!IS_SPECIFIC && found > CAPABILITY)) return 0;
  if (found != 0 && attribute_of(device, DEVICE_NAME, &chip) != 0) return -1;
  snprintf(message, sizeof(message),
           NAME ": found %.100s of compute capability %d.%d; need %d.%d%s, since it holds code for "
                ARCH "; build it for that chip", text_of(&chip), found / 10, found % 10,
           CAPABILITY / 10, CAPABILITY % 10, IS_SPECIFIC ? "" : " or later");
  if (chip.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(chip.v_obj);
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", message);
  return -1;
}
