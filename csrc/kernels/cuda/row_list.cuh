// The rows of all messages as one list, so that blocks can share them out evenly whichever messages are long.
#ifndef JAX_FABRIC_KERNELS_CUDA_ROW_LIST_CUH_
#define JAX_FABRIC_KERNELS_CUDA_ROW_LIST_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/block_scan.cuh"

namespace jax_fabric::kernels::cuda {

struct RowInMessage {
  int32_t message;
  int32_t row;
};

// `begins` is shared memory for messages + 1 numbers.
class RowList {
 public:
  explicit __device__ RowList(int32_t* begins) : begins_(begins) {}

  static constexpr int64_t SharedBytes(int64_t messages) { return 4 * (messages + 1); }

  // By all threads of the block, which are together afterwards. rows_of(i): how many rows message i has.
  template <int kThreads, typename RowsOf>
  __device__ __forceinline__ void Fill(int32_t messages, RowsOf rows_of) {
    messages_ = messages;
    rows_ = 0;
#pragma unroll 1
    for (int32_t base = 0; base < messages; base += kThreads) {
      const int32_t i = base + static_cast<int32_t>(threadIdx.x);
      const PairScan scan = ScanBlock<kThreads>({i < messages ? static_cast<int32_t>(rows_of(i)) : 0, 0});
      if (i < messages) begins_[i] = rows_ + scan.before.a;
      rows_ += scan.total.a;
    }
    if (threadIdx.x == 0) begins_[messages] = rows_;
    __syncthreads();
  }

  __device__ __forceinline__ int32_t rows() const { return rows_; }
  __device__ __forceinline__ int32_t rows_of(int32_t message) const { return begins_[message + 1] - begins_[message]; }

  // `row` is below rows().
  __device__ __forceinline__ RowInMessage Find(int32_t row) const {
    int32_t begin = 0, end = messages_ - 1;  // the last message that begins at the row or before it
    while (begin < end) {
      const int32_t middle = (begin + end + 1) / 2;
      if (begins_[middle] <= row) {
        begin = middle;
      } else {
        end = middle - 1;
      }
    }
    return {begin, row - begins_[begin]};
  }

 private:
  int32_t* const begins_;
  int32_t messages_ = 0;
  int32_t rows_ = 0;
};

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_ROW_LIST_CUH_
