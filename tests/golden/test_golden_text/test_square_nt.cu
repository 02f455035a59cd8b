extern "C" __global__ void __launch_bounds__(384, 1) main_kernel(const __grid_constant__ CUtensorMap A_map, const __grid_constant__ CUtensorMap B_map, float* C_ptr, int num_blocks) {
  extern __shared__ __align__(1024) uchar dyn_smem_ptr[];
  alignas(64) float C_local_ptr[64];
  alignas(64) float C_pair_ptr[2];
  if (((int)threadIdx.x) == 0) {
    tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(A_map)))));
    tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(B_map)))));
    for (int slot = 0; slot < 4; ++slot) {
      tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[(slot + 16384)]))), (uint)1);
      tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[(slot + 16388)]))), (uint)2);
    }
    tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster();
  }
  __syncthreads();
  tvm_builtin_ptx_griddepcontrol_wait();
  int cse_v11 = (((num_blocks + 1023) - ((int)blockIdx.x)) / num_blocks);
  if (((int)threadIdx.x) < 128) {
    tvm_builtin_ptx_setmaxnreg_dec_sync_aligned_u32_40();
    if (((int)threadIdx.x) == 0) {
      #pragma unroll 1
      for (int tile = 0; tile < (((num_blocks + 1023) - ((int)blockIdx.x)) / num_blocks); ++tile) {
        int cse_v4 = (((int)blockIdx.x) + (tile * num_blocks));
        int linear = (((int)blockIdx.x) + (tile * num_blocks));
        int cse_v12 = ((((int)blockIdx.x) + (tile * num_blocks)) >> 9);
        int cse_v16 = (((((int)blockIdx.x) + (tile * num_blocks)) >> 9) * 16);
        int first = (((((int)blockIdx.x) + (tile * num_blocks)) >> 9) * 16);
        int cse_v13 = ((((int)blockIdx.x) + (tile * num_blocks)) & 511);
        int inside = ((((int)blockIdx.x) + (tile * num_blocks)) & 511);
        int cse_v17 = (((((int)blockIdx.x) + (tile * num_blocks)) & 511) % 16);
        int tile_y = ((((((int)blockIdx.x) + (tile * num_blocks)) >> 9) * 16) + (((((int)blockIdx.x) + (tile * num_blocks)) & 511) % 16));
        int cse_v18 = (((((int)blockIdx.x) + (tile * num_blocks)) & 511) / 16);
        int tile_x = (((((int)blockIdx.x) + (tile * num_blocks)) & 511) / 16);
        #pragma unroll 1
        for (int k_0 = 0; k_0 < 64; ++k_0) {
          int cse_v1 = (k_0 & 3);
          tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)dyn_smem_ptr)[((k_0 & 3) + 16388)])), (((k_0 >> 2) + 1) & 1));
          int cse_v5 = ((k_0 & 3) + 16384);
          tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((k_0 & 3) + 16384)]))), (uint)32768);
          int cse_v2 = (k_0 * 64);
          int cse_v6 = ((k_0 & 3) * 8192);
          tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)dyn_smem_ptr)[((k_0 & 3) * 8192)]))), ((void*)((unsigned long long)(&(A_map)))), (k_0 * 64), ((((((int)blockIdx.x) + (tile * num_blocks)) >> 9) * 2048) + ((((((int)blockIdx.x) + (tile * num_blocks)) & 511) % 16) * 128)), tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((k_0 & 3) + 16384)]))));
          tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)dyn_smem_ptr)[(((k_0 & 3) * 8192) + 32768)]))), ((void*)((unsigned long long)(&(B_map)))), (k_0 * 64), ((((((int)blockIdx.x) + (tile * num_blocks)) & 511) / 16) * 128), tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((k_0 & 3) + 16384)]))));
        }
      }
      tvm_builtin_ptx_griddepcontrol_launch_dependents();
    }
  } else {
    tvm_builtin_ptx_setmaxnreg_inc_sync_aligned_u32_232();
    #pragma unroll 1
    for (int tile_1 = 0; tile_1 < (((num_blocks + 1023) - ((int)blockIdx.x)) / num_blocks); ++tile_1) {
      int cse_v7 = (((int)blockIdx.x) + (tile_1 * num_blocks));
      int linear_1 = (((int)blockIdx.x) + (tile_1 * num_blocks));
      int cse_v14 = ((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 9);
      int cse_v19 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 9) * 16);
      int first_1 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 9) * 16);
      int cse_v15 = ((((int)blockIdx.x) + (tile_1 * num_blocks)) & 511);
      int inside_1 = ((((int)blockIdx.x) + (tile_1 * num_blocks)) & 511);
      int cse_v20 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 511) % 16);
      int tile_y_1 = ((((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 9) * 16) + (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 511) % 16));
      int cse_v21 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 511) / 16);
      int tile_x_1 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 511) / 16);
      #pragma unroll 64
      for (int i = 0; i < 64; ++i) {
        C_local_ptr[i] = 0x0p+0f/*0.000000e+00*/;
      }
      #pragma unroll 1
      for (int k_0_1 = 0; k_0_1 < 64; ++k_0_1) {
        int cse_v3 = (k_0_1 & 3);
        tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)dyn_smem_ptr)[((k_0_1 & 3) + 16384)])), ((k_0_1 & 7) >> 2));
        tvm_builtin_ptx_wgmma_fence_fence_sync_aligned();
        int cse_v8 = ((k_0_1 & 3) * 8192);
        uint64_t descriptor_a = ((((uint64_t)((tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)dyn_smem_ptr)[((k_0_1 & 3) * 8192)]))) & (uint)262143) >> (uint)4)) | (uint64_t)4611686293305360384ULL) + ((uint64_t)(((((int)threadIdx.x) >> 7) * 512) - 512)));
        uint64_t descriptor_b = (((uint64_t)((tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)dyn_smem_ptr)[(((k_0_1 & 3) * 8192) + 32768)]))) & (uint)262143) >> (uint)4)) | (uint64_t)4611686293305360384ULL);
        #pragma unroll 4
        for (int step = 0; step < 4; ++step) {
          uint64_t cse_v9 = ((uint64_t)(step * 2));
          tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n128k16_f32_f16_f16_1_1_0_0(C_local_ptr[0], C_local_ptr[1], C_local_ptr[2], C_local_ptr[3], C_local_ptr[4], C_local_ptr[5], C_local_ptr[6], C_local_ptr[7], C_local_ptr[8], C_local_ptr[9], C_local_ptr[10], C_local_ptr[11], C_local_ptr[12], C_local_ptr[13], C_local_ptr[14], C_local_ptr[15], C_local_ptr[16], C_local_ptr[17], C_local_ptr[18], C_local_ptr[19], C_local_ptr[20], C_local_ptr[21], C_local_ptr[22], C_local_ptr[23], C_local_ptr[24], C_local_ptr[25], C_local_ptr[26], C_local_ptr[27], C_local_ptr[28], C_local_ptr[29], C_local_ptr[30], C_local_ptr[31], C_local_ptr[32], C_local_ptr[33], C_local_ptr[34], C_local_ptr[35], C_local_ptr[36], C_local_ptr[37], C_local_ptr[38], C_local_ptr[39], C_local_ptr[40], C_local_ptr[41], C_local_ptr[42], C_local_ptr[43], C_local_ptr[44], C_local_ptr[45], C_local_ptr[46], C_local_ptr[47], C_local_ptr[48], C_local_ptr[49], C_local_ptr[50], C_local_ptr[51], C_local_ptr[52], C_local_ptr[53], C_local_ptr[54], C_local_ptr[55], C_local_ptr[56], C_local_ptr[57], C_local_ptr[58], C_local_ptr[59], C_local_ptr[60], C_local_ptr[61], C_local_ptr[62], C_local_ptr[63], (descriptor_a + ((uint64_t)(step * 2))), (descriptor_b + ((uint64_t)(step * 2))), (bool)1);
        }
        tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned();
        tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0();
        if ((((int)threadIdx.x) % 128) == 0) {
          tvm_builtin_ptx_mbarrier_arrive_nocount_arrive_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((k_0_1 & 3) + 16388)]))));
        }
      }
      #pragma unroll 16
      for (int g = 0; g < 16; ++g) {
        #pragma unroll 2
        for (int h = 0; h < 2; ++h) {
          int cse_v10 = ((g * 4) + (h * 2));
          C_pair_ptr[0] = C_local_ptr[((g * 4) + (h * 2))];
          C_pair_ptr[1] = C_local_ptr[(((g * 4) + (h * 2)) + 1)];
          *(float2*)(C_ptr + (((((((((((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 9) * 8388608) + ((((((int)blockIdx.x) + (tile_1 * num_blocks)) & 511) % 16) * 524288)) + ((((int)threadIdx.x) >> 5) * 65536)) + (h * 32768)) + (((((int)threadIdx.x) & 31) >> 2) * 4096)) + ((((((int)blockIdx.x) + (tile_1 * num_blocks)) & 511) / 16) * 128)) + (g * 8)) + ((((int)threadIdx.x) & 3) * 2)) - 262144)) = *(float2*)(C_pair_ptr + 0);
        }
      }
    }
  }
}

