extern "C" __global__ void __launch_bounds__(384, 1) main_kernel(const __grid_constant__ CUtensorMap A_map, const __grid_constant__ CUtensorMap A_tail_map, const __grid_constant__ CUtensorMap B_map, nv_bfloat16* __restrict__ D_ptr, nv_bfloat16* __restrict__ bias_col_ptr, int cse_v15, int cse_v16, int cse_v26, int cse_v27, int m, int num_blocks) {
  extern __shared__ __align__(1024) uchar dyn_smem_ptr[];
  alignas(64) float C_pad_local_ptr[64];
  alignas(64) nv_bfloat16 bias_col_ahead_ptr[32];
  alignas(64) float bias_col_ahead_wide_ptr[32];
  alignas(64) nv_bfloat16 D_run_ptr[64];
  if (cse_v15 < 127) {
    for (int panel = 0; panel < 3; ++panel) {
      for (int turn = 0; turn < 3; ++turn) {
        if ((((turn * 48) + (((int)threadIdx.x) >> 3)) + cse_v15) < 127) {
          *(uint4*)(((nv_bfloat16*)dyn_smem_ptr) + (((((panel * 8192) + (turn * 3072)) + (cse_v15 * 64)) + (((int)threadIdx.x) * 8)) + 64)) = make_uint4(__pack_nv_bfloat162(__float2bfloat16_rn(0x0p+0f/*0.000000e+00*/), __float2bfloat16_rn(0x0p+0f/*0.000000e+00*/)), __pack_nv_bfloat162(__float2bfloat16_rn(0x0p+0f/*0.000000e+00*/), __float2bfloat16_rn(0x0p+0f/*0.000000e+00*/)), __pack_nv_bfloat162(__float2bfloat16_rn(0x0p+0f/*0.000000e+00*/), __float2bfloat16_rn(0x0p+0f/*0.000000e+00*/)), __pack_nv_bfloat162(__float2bfloat16_rn(0x0p+0f/*0.000000e+00*/), __float2bfloat16_rn(0x0p+0f/*0.000000e+00*/)));
        }
      }
    }
    tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();
  }
  if (((int)threadIdx.x) == 0) {
    tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(A_map)))));
    tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(A_tail_map)))));
    tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(B_map)))));
    for (int slot = 0; slot < 3; ++slot) {
      tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[(slot + 12288)]))), (uint)1);
      tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[(slot + 12292)]))), (uint)2);
    }
    tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster();
  }
  __syncthreads();
  int cse_v50 = ((((cse_v27 + num_blocks) - ((int)blockIdx.x)) - 1) / num_blocks);
  if (((int)threadIdx.x) < 128) {
    tvm_builtin_ptx_setmaxnreg_dec_sync_aligned_u32_40();
    if (((int)threadIdx.x) == 0) {
      #pragma unroll 1
      for (int tile = 0; tile < ((((cse_v27 + num_blocks) - ((int)blockIdx.x)) - 1) / num_blocks); ++tile) {
        int cse_v17 = (((int)blockIdx.x) + (tile * num_blocks));
        int linear = (((int)blockIdx.x) + (tile * num_blocks));
        int cse_v28 = ((((int)blockIdx.x) + (tile * num_blocks)) >> 7);
        int cse_v41 = (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16);
        int first = (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16);
        int cse_v48 = min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16);
        int rows = min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16);
        int cse_v29 = ((((int)blockIdx.x) + (tile * num_blocks)) & 127);
        int inside = ((((int)blockIdx.x) + (tile * num_blocks)) & 127);
        int cse_v51 = (((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16));
        int cse_v55 = ((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16) + (((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)));
        int tile_y = ((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16) + (((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)));
        int cse_v52 = (((((int)blockIdx.x) + (tile * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16));
        int tile_x = (((((int)blockIdx.x) + (tile * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16));
        tvm_builtin_tvm_hopper_hold_value(((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16) + (((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16))));
        tvm_builtin_tvm_hopper_hold_value((((((int)blockIdx.x) + (tile * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)));
        #pragma unroll 1
        for (int k_0 = 0; k_0 < 5; ++k_0) {
          int cse_v18 = ((tile * 5) + k_0);
          int cse_v30 = (((tile * 5) + k_0) % 3);
          tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)dyn_smem_ptr)[((((tile * 5) + k_0) % 3) + 12292)])), (((((tile * 5) + k_0) / 3) + 1) & 1));
          int cse_v42 = ((((tile * 5) + k_0) % 3) + 12288);
          int cse_v58 = ((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 2048) + ((((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)) * 128));
          int cse_v59 = (((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 2048) + ((((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)) * 128)) + 128);
          tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((((tile * 5) + k_0) % 3) + 12288)]))), ((uint)(((((((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 2048) + ((((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)) * 128)) + 128) <= m) ? 128 : cse_v26) * 128) + 16384)));
          int cse_v3 = (k_0 * 64);
          int cse_v43 = ((((tile * 5) + k_0) % 3) * 8192);
          if ((((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 2048) + ((((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)) * 128)) + 128) <= m) {
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[((((tile * 5) + k_0) % 3) * 8192)]))), ((void*)((unsigned long long)(&(A_map)))), (k_0 * 64), ((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 2048) + ((((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)) * 128)), tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((((tile * 5) + k_0) % 3) + 12288)]))));
          } else {
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[((((tile * 5) + k_0) % 3) * 8192)]))), ((void*)((unsigned long long)(&(A_tail_map)))), (k_0 * 64), ((((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 2048) + ((((((int)blockIdx.x) + (tile * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)) * 128)), tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((((tile * 5) + k_0) % 3) + 12288)]))));
          }
          for (int panel_1 = 0; panel_1 < 2; ++panel_1) {
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[((((((tile * 5) + k_0) % 3) * 8192) + (panel_1 * 4096)) + 24576)]))), ((void*)((unsigned long long)(&(B_map)))), (((((((int)blockIdx.x) + (tile * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile * num_blocks)) >> 7) * 16)), 16)) * 128) + (panel_1 * 64)), (k_0 * 64), tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((((tile * 5) + k_0) % 3) + 12288)]))));
          }
        }
      }
    }
  } else {
    tvm_builtin_ptx_setmaxnreg_inc_sync_aligned_u32_232();
    #pragma unroll 1
    for (int tile_1 = 0; tile_1 < ((((cse_v27 + num_blocks) - ((int)blockIdx.x)) - 1) / num_blocks); ++tile_1) {
      int cse_v4 = (tile_1 * num_blocks);
      int cse_v19 = (((int)blockIdx.x) + (tile_1 * num_blocks));
      int linear_1 = (((int)blockIdx.x) + (tile_1 * num_blocks));
      int cse_v31 = ((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7);
      int cse_v44 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16);
      int first_1 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16);
      int cse_v49 = min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16);
      int rows_1 = min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16);
      int cse_v32 = ((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127);
      int inside_1 = ((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127);
      int cse_v53 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16));
      int cse_v56 = ((((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16) + (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16)));
      int tile_y_1 = ((((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16) + (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16)));
      int cse_v54 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16));
      int tile_x_1 = (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16));
      tvm_builtin_tvm_hopper_hold_value(((((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16) + (((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16))));
      tvm_builtin_tvm_hopper_hold_value((((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16)));
      #pragma unroll 64
      for (int i = 0; i < 64; ++i) {
        C_pad_local_ptr[i] = 0x0p+0f/*0.000000e+00*/;
      }
      int cse_v5 = (tile_1 * 5);
      int cse_v6 = (((int)threadIdx.x) & 127);
      uint64_t cse_v46 = ((uint64_t)(((((int)threadIdx.x) >> 7) * 512) - 512));
      #pragma unroll 1
      for (int k_0_1 = 0; k_0_1 < 3; ++k_0_1) {
        int cse_v20 = ((tile_1 * 5) + k_0_1);
        int cse_v33 = (((tile_1 * 5) + k_0_1) % 3);
        tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)dyn_smem_ptr)[((((tile_1 * 5) + k_0_1) % 3) + 12288)])), ((((tile_1 * 5) + k_0_1) % 6) / 3));
        tvm_builtin_ptx_wgmma_fence_fence_sync_aligned();
        int cse_v45 = ((((tile_1 * 5) + k_0_1) % 3) * 8192);
        uint64_t descriptor_a = ((((uint64_t)((tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[((((tile_1 * 5) + k_0_1) % 3) * 8192)]))) & (uint)262143) >> (uint)4)) | (uint64_t)4611686293305360384ULL) + ((uint64_t)(((((int)threadIdx.x) >> 7) * 512) - 512)));
        uint64_t descriptor_b = (((uint64_t)((tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[(((((tile_1 * 5) + k_0_1) % 3) * 8192) + 24576)]))) & (uint)262143) >> (uint)4)) | (uint64_t)4611686293338849280ULL);
        #pragma unroll 4
        for (int step = 0; step < 4; ++step) {
          tvm_builtin_ptx_wgmma_bf16_ss_mma_async_sync_aligned_m64n128k16_f32_bf16_bf16_1_1_0_1(C_pad_local_ptr[0], C_pad_local_ptr[1], C_pad_local_ptr[2], C_pad_local_ptr[3], C_pad_local_ptr[4], C_pad_local_ptr[5], C_pad_local_ptr[6], C_pad_local_ptr[7], C_pad_local_ptr[8], C_pad_local_ptr[9], C_pad_local_ptr[10], C_pad_local_ptr[11], C_pad_local_ptr[12], C_pad_local_ptr[13], C_pad_local_ptr[14], C_pad_local_ptr[15], C_pad_local_ptr[16], C_pad_local_ptr[17], C_pad_local_ptr[18], C_pad_local_ptr[19], C_pad_local_ptr[20], C_pad_local_ptr[21], C_pad_local_ptr[22], C_pad_local_ptr[23], C_pad_local_ptr[24], C_pad_local_ptr[25], C_pad_local_ptr[26], C_pad_local_ptr[27], C_pad_local_ptr[28], C_pad_local_ptr[29], C_pad_local_ptr[30], C_pad_local_ptr[31], C_pad_local_ptr[32], C_pad_local_ptr[33], C_pad_local_ptr[34], C_pad_local_ptr[35], C_pad_local_ptr[36], C_pad_local_ptr[37], C_pad_local_ptr[38], C_pad_local_ptr[39], C_pad_local_ptr[40], C_pad_local_ptr[41], C_pad_local_ptr[42], C_pad_local_ptr[43], C_pad_local_ptr[44], C_pad_local_ptr[45], C_pad_local_ptr[46], C_pad_local_ptr[47], C_pad_local_ptr[48], C_pad_local_ptr[49], C_pad_local_ptr[50], C_pad_local_ptr[51], C_pad_local_ptr[52], C_pad_local_ptr[53], C_pad_local_ptr[54], C_pad_local_ptr[55], C_pad_local_ptr[56], C_pad_local_ptr[57], C_pad_local_ptr[58], C_pad_local_ptr[59], C_pad_local_ptr[60], C_pad_local_ptr[61], C_pad_local_ptr[62], C_pad_local_ptr[63], (descriptor_a + ((uint64_t)(step * 2))), (descriptor_b + ((uint64_t)(step * 128))), (bool)1);
        }
        tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned();
        tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0();
        if ((((int)threadIdx.x) % 128) == 0) {
          tvm_builtin_ptx_mbarrier_arrive_nocount_arrive_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((((tile_1 * 5) + k_0_1) % 3) + 12292)]))));
        }
      }
      int cse_v7 = (((int)threadIdx.x) & 3);
      int cse_v57 = ((((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16)) * 16);
      #pragma unroll 16
      for (int g = 0; g < 16; ++g) {
        *(nv_bfloat162*)(bias_col_ahead_ptr + (g * 2)) = *(nv_bfloat162*)(bias_col_ptr + (((((((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16)) * 16) + g) < 125) ? ((((((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16)) * 128) + (g * 8)) + ((((int)threadIdx.x) & 3) * 2)) : 0));
      }
      int cse_v21 = ((tile_1 * 2) % 3);
      tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)dyn_smem_ptr)[(((tile_1 * 2) % 3) + 12288)])), ((((tile_1 * 5) / 3) + 1) & 1));
      tvm_builtin_ptx_wgmma_fence_fence_sync_aligned();
      int cse_v34 = (((tile_1 * 2) % 3) * 8192);
      uint64_t descriptor_a_1 = ((((uint64_t)((tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[(((tile_1 * 2) % 3) * 8192)]))) & (uint)262143) >> (uint)4)) | (uint64_t)4611686293305360384ULL) + ((uint64_t)(((((int)threadIdx.x) >> 7) * 512) - 512)));
      uint64_t descriptor_b_1 = (((uint64_t)((tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[((((tile_1 * 2) % 3) * 8192) + 24576)]))) & (uint)262143) >> (uint)4)) | (uint64_t)4611686293338849280ULL);
      #pragma unroll 4
      for (int step_1 = 0; step_1 < 4; ++step_1) {
        tvm_builtin_ptx_wgmma_bf16_ss_mma_async_sync_aligned_m64n128k16_f32_bf16_bf16_1_1_0_1(C_pad_local_ptr[0], C_pad_local_ptr[1], C_pad_local_ptr[2], C_pad_local_ptr[3], C_pad_local_ptr[4], C_pad_local_ptr[5], C_pad_local_ptr[6], C_pad_local_ptr[7], C_pad_local_ptr[8], C_pad_local_ptr[9], C_pad_local_ptr[10], C_pad_local_ptr[11], C_pad_local_ptr[12], C_pad_local_ptr[13], C_pad_local_ptr[14], C_pad_local_ptr[15], C_pad_local_ptr[16], C_pad_local_ptr[17], C_pad_local_ptr[18], C_pad_local_ptr[19], C_pad_local_ptr[20], C_pad_local_ptr[21], C_pad_local_ptr[22], C_pad_local_ptr[23], C_pad_local_ptr[24], C_pad_local_ptr[25], C_pad_local_ptr[26], C_pad_local_ptr[27], C_pad_local_ptr[28], C_pad_local_ptr[29], C_pad_local_ptr[30], C_pad_local_ptr[31], C_pad_local_ptr[32], C_pad_local_ptr[33], C_pad_local_ptr[34], C_pad_local_ptr[35], C_pad_local_ptr[36], C_pad_local_ptr[37], C_pad_local_ptr[38], C_pad_local_ptr[39], C_pad_local_ptr[40], C_pad_local_ptr[41], C_pad_local_ptr[42], C_pad_local_ptr[43], C_pad_local_ptr[44], C_pad_local_ptr[45], C_pad_local_ptr[46], C_pad_local_ptr[47], C_pad_local_ptr[48], C_pad_local_ptr[49], C_pad_local_ptr[50], C_pad_local_ptr[51], C_pad_local_ptr[52], C_pad_local_ptr[53], C_pad_local_ptr[54], C_pad_local_ptr[55], C_pad_local_ptr[56], C_pad_local_ptr[57], C_pad_local_ptr[58], C_pad_local_ptr[59], C_pad_local_ptr[60], C_pad_local_ptr[61], C_pad_local_ptr[62], C_pad_local_ptr[63], (descriptor_a_1 + ((uint64_t)(step_1 * 2))), (descriptor_b_1 + ((uint64_t)(step_1 * 128))), (bool)1);
      }
      tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned();
      tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0();
      if ((((int)threadIdx.x) % 128) == 0) {
        tvm_builtin_ptx_mbarrier_arrive_nocount_arrive_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[(((tile_1 * 2) % 3) + 12292)]))));
      }
      int cse_v35 = (((tile_1 * 5) + 1) % 3);
      tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)dyn_smem_ptr)[((((tile_1 * 5) + 1) % 3) + 12288)])), ((((tile_1 * 5) + 4) % 6) / 3));
      tvm_builtin_ptx_wgmma_fence_fence_sync_aligned();
      int cse_v47 = ((((tile_1 * 5) + 1) % 3) * 8192);
      uint64_t descriptor_a_2 = ((((uint64_t)((tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[((((tile_1 * 5) + 1) % 3) * 8192)]))) & (uint)262143) >> (uint)4)) | (uint64_t)4611686293305360384ULL) + ((uint64_t)(((((int)threadIdx.x) >> 7) * 512) - 512)));
      uint64_t descriptor_b_2 = (((uint64_t)((tvm_builtin_cuda_cvta_generic_to_shared((&(((nv_bfloat16*)dyn_smem_ptr)[(((((tile_1 * 5) + 1) % 3) * 8192) + 24576)]))) & (uint)262143) >> (uint)4)) | (uint64_t)4611686293338849280ULL);
      #pragma unroll 4
      for (int step_2 = 0; step_2 < 4; ++step_2) {
        tvm_builtin_ptx_wgmma_bf16_ss_mma_async_sync_aligned_m64n128k16_f32_bf16_bf16_1_1_0_1(C_pad_local_ptr[0], C_pad_local_ptr[1], C_pad_local_ptr[2], C_pad_local_ptr[3], C_pad_local_ptr[4], C_pad_local_ptr[5], C_pad_local_ptr[6], C_pad_local_ptr[7], C_pad_local_ptr[8], C_pad_local_ptr[9], C_pad_local_ptr[10], C_pad_local_ptr[11], C_pad_local_ptr[12], C_pad_local_ptr[13], C_pad_local_ptr[14], C_pad_local_ptr[15], C_pad_local_ptr[16], C_pad_local_ptr[17], C_pad_local_ptr[18], C_pad_local_ptr[19], C_pad_local_ptr[20], C_pad_local_ptr[21], C_pad_local_ptr[22], C_pad_local_ptr[23], C_pad_local_ptr[24], C_pad_local_ptr[25], C_pad_local_ptr[26], C_pad_local_ptr[27], C_pad_local_ptr[28], C_pad_local_ptr[29], C_pad_local_ptr[30], C_pad_local_ptr[31], C_pad_local_ptr[32], C_pad_local_ptr[33], C_pad_local_ptr[34], C_pad_local_ptr[35], C_pad_local_ptr[36], C_pad_local_ptr[37], C_pad_local_ptr[38], C_pad_local_ptr[39], C_pad_local_ptr[40], C_pad_local_ptr[41], C_pad_local_ptr[42], C_pad_local_ptr[43], C_pad_local_ptr[44], C_pad_local_ptr[45], C_pad_local_ptr[46], C_pad_local_ptr[47], C_pad_local_ptr[48], C_pad_local_ptr[49], C_pad_local_ptr[50], C_pad_local_ptr[51], C_pad_local_ptr[52], C_pad_local_ptr[53], C_pad_local_ptr[54], C_pad_local_ptr[55], C_pad_local_ptr[56], C_pad_local_ptr[57], C_pad_local_ptr[58], C_pad_local_ptr[59], C_pad_local_ptr[60], C_pad_local_ptr[61], C_pad_local_ptr[62], C_pad_local_ptr[63], (descriptor_a_2 + ((uint64_t)(step_2 * 2))), (descriptor_b_2 + ((uint64_t)(step_2 * 128))), (bool)1);
      }
      tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned();
      #pragma unroll 16
      for (int i_1 = 0; i_1 < 16; ++i_1) {
        tvm_builtin_tvm_hopper_hold_uint32(((uint*)bias_col_ahead_ptr)[i_1]);
      }
      #pragma unroll 16
      for (int i_2 = 0; i_2 < 16; ++i_2) {
        int cse_v8 = (i_2 * 2);
        bias_col_ahead_wide_ptr[(i_2 * 2)] = ((float)bias_col_ahead_ptr[(i_2 * 2)]);
        tvm_builtin_tvm_hopper_hold_float32(bias_col_ahead_wide_ptr[(i_2 * 2)]);
        int cse_v22 = ((i_2 * 2) + 1);
          uint v_ = tvm_builtin_tvm_hopper_upper_half(((uint*)bias_col_ahead_ptr)[i_2]);
        bias_col_ahead_wide_ptr[((i_2 * 2) + 1)] = (*(float *)(&(v_)));
        tvm_builtin_tvm_hopper_hold_float32(bias_col_ahead_wide_ptr[((i_2 * 2) + 1)]);
      }
      tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0();
      tvm_builtin_tvm_hopper_code_fence();
      if ((((int)threadIdx.x) % 128) == 0) {
        tvm_builtin_ptx_mbarrier_arrive_nocount_arrive_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)dyn_smem_ptr)[((((tile_1 * 5) + 1) % 3) + 12292)]))));
      }
      #pragma unroll 4
      for (int g_1 = 0; g_1 < 4; ++g_1) {
        #pragma unroll 2
        for (int h = 0; h < 2; ++h) {
          int cse_v10 = (g_1 * 8);
          #pragma unroll 4
          for (int j = 0; j < 4; ++j) {
            int cse_v9 = (g_1 * 16);
            int cse_v11 = (j * 2);
            int cse_v23 = ((g_1 * 8) + (j * 2));
            int cse_v36 = (((g_1 * 16) + (j * 4)) + (h * 2));
            int cse_v37 = (((g_1 * 16) + (h * 8)) + (j * 2));
            D_run_ptr[(((g_1 * 16) + (h * 8)) + (j * 2))] = ((nv_bfloat16)max((C_pad_local_ptr[(((g_1 * 16) + (j * 4)) + (h * 2))] + bias_col_ahead_wide_ptr[((g_1 * 8) + (j * 2))]), 0x0p+0f/*0.000000e+00*/));
            D_run_ptr[((((g_1 * 16) + (h * 8)) + (j * 2)) + 1)] = ((nv_bfloat16)max((C_pad_local_ptr[((((g_1 * 16) + (j * 4)) + (h * 2)) + 1)] + bias_col_ahead_wide_ptr[(((g_1 * 8) + (j * 2)) + 1)]), 0x0p+0f/*0.000000e+00*/));
          }
          int cse_v12 = (((int)threadIdx.x) & 1);
          int cse_v24 = ((g_1 * 8) + (h * 4));
          int cse_v38 = (((g_1 * 8) + (h * 4)) + 1);
          uint condval;
          if ((((int)threadIdx.x) & 1) == 1) {
            condval = ((uint*)D_run_ptr)[((g_1 * 8) + (h * 4))];
          } else {
            condval = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 1)];
          }
          uint got = __shfl_xor_sync((uint)4294967295, condval, 1, 32);
          uint condval_1;
          if ((((int)threadIdx.x) & 1) == 1) {
            condval_1 = got;
          } else {
            condval_1 = ((uint*)D_run_ptr)[((g_1 * 8) + (h * 4))];
          }
          ((uint*)D_run_ptr)[((g_1 * 8) + (h * 4))] = condval_1;
          uint condval_2;
          if ((((int)threadIdx.x) & 1) == 1) {
            condval_2 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 1)];
          } else {
            condval_2 = got;
          }
          ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 1)] = condval_2;
          int cse_v39 = (((g_1 * 8) + (h * 4)) + 2);
          int cse_v40 = (((g_1 * 8) + (h * 4)) + 3);
          uint condval_3;
          if ((((int)threadIdx.x) & 1) == 1) {
            condval_3 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 2)];
          } else {
            condval_3 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 3)];
          }
          uint got_1 = __shfl_xor_sync((uint)4294967295, condval_3, 1, 32);
          uint condval_4;
          if ((((int)threadIdx.x) & 1) == 1) {
            condval_4 = got_1;
          } else {
            condval_4 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 2)];
          }
          ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 2)] = condval_4;
          uint condval_5;
          if ((((int)threadIdx.x) & 1) == 1) {
            condval_5 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 3)];
          } else {
            condval_5 = got_1;
          }
          ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 3)] = condval_5;
          int cse_v25 = ((((int)threadIdx.x) & 3) >> 1);
          uint condval_6;
          if (((((int)threadIdx.x) & 3) >> 1) == 1) {
            condval_6 = ((uint*)D_run_ptr)[((g_1 * 8) + (h * 4))];
          } else {
            condval_6 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 2)];
          }
          uint got_2 = __shfl_xor_sync((uint)4294967295, condval_6, 2, 32);
          uint condval_7;
          if (((((int)threadIdx.x) & 3) >> 1) == 1) {
            condval_7 = got_2;
          } else {
            condval_7 = ((uint*)D_run_ptr)[((g_1 * 8) + (h * 4))];
          }
          ((uint*)D_run_ptr)[((g_1 * 8) + (h * 4))] = condval_7;
          uint condval_8;
          if (((((int)threadIdx.x) & 3) >> 1) == 1) {
            condval_8 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 2)];
          } else {
            condval_8 = got_2;
          }
          ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 2)] = condval_8;
          uint condval_9;
          if (((((int)threadIdx.x) & 3) >> 1) == 1) {
            condval_9 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 1)];
          } else {
            condval_9 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 3)];
          }
          uint got_3 = __shfl_xor_sync((uint)4294967295, condval_9, 2, 32);
          uint condval_10;
          if (((((int)threadIdx.x) & 3) >> 1) == 1) {
            condval_10 = got_3;
          } else {
            condval_10 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 1)];
          }
          ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 1)] = condval_10;
          uint condval_11;
          if (((((int)threadIdx.x) & 3) >> 1) == 1) {
            condval_11 = ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 3)];
          } else {
            condval_11 = got_3;
          }
          ((uint*)D_run_ptr)[(((g_1 * 8) + (h * 4)) + 3)] = condval_11;
        }
      }
      #pragma unroll 2
      for (int h_1 = 0; h_1 < 2; ++h_1) {
        int cse_v13 = (h_1 * 8);
        if ((((((((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 2048) + ((((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16)) * 128)) + ((((int)threadIdx.x) >> 5) * 16)) + (h_1 * 8)) + ((((int)threadIdx.x) & 31) >> 2)) < (m + 64)) {
          #pragma unroll 4
          for (int g_2 = 0; g_2 < 4; ++g_2) {
            if (((((((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16)) * 16) + (g_2 * 4)) + (((int)threadIdx.x) & 3)) < 125) {
              int64_t cse_v14 = ((int64_t)((int)threadIdx.x));
              *(uint4*)(D_ptr + (((((((((((((int64_t)((int)blockIdx.x)) + ((int64_t)(tile_1 * num_blocks))) >> (int64_t)7) * (int64_t)2048000) + (((int64_t)(((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) % min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16))) * (int64_t)128000)) + ((((int64_t)((int)threadIdx.x)) >> (int64_t)5) * (int64_t)16000)) + (((int64_t)h_1) * (int64_t)8000)) + (((((int64_t)((int)threadIdx.x)) & (int64_t)31) >> (int64_t)2) * (int64_t)1000)) + (((int64_t)(((((int)blockIdx.x) + (tile_1 * num_blocks)) & 127) / min((cse_v16 - (((((int)blockIdx.x) + (tile_1 * num_blocks)) >> 7) * 16)), 16))) * (int64_t)128)) + (((int64_t)g_2) * (int64_t)32)) + ((((int64_t)((int)threadIdx.x)) & (int64_t)3) * (int64_t)8)) - (int64_t)64000)) = *(uint4*)(D_run_ptr + ((g_2 * 16) + (h_1 * 8)));
            }
          }
        }
      }
    }
  }
}

