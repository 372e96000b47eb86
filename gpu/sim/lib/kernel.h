// What a host kernel library and the simulated driver agree on.
//
// The driver reads entry names, parameter sizes and static shared memory from the PTX text that it is
// given, as a card's driver would. The code of entry NAME is the function NAME__sim of one of the shared
// libraries named in CUSIM_KERNELS (separated by colons), usually the host build of the same source.
#ifndef CUSIM_KERNEL_H
#define CUSIM_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// One launch. Everything here is the driver's and lives until NAME__sim returns.
struct cusim_launch {
  uint32_t grid[3], block[3]; // blocks; threads a block
  uint32_t shared_bytes;      // dynamic shared memory a block
  uint32_t device;            // ordinal of the card it runs on
  uint32_t params;            // number of parameters
  void **param;               // param[i] points to parameter i, aligned as in the PTX
};

// NAME__sim runs all blocks and returns 0, or a CUresult that then ends the context, as a fault in a
// kernel does: 700 illegal address, 702 timeout, 710 assert, 716 misaligned, 719 launch failed. It is
// called on the thread of the launch's stream, one launch at a time on each; launches of other streams
// and devices run beside it. It may print why to stderr.
//
// Pointers among the parameters are addresses of this process: memory of any card, and registered host
// memory, can be read and written through them.
typedef int cusim_kernel(const struct cusim_launch *);

#ifdef __cplusplus
}
#endif
#endif
