#ifndef TANDEM_ROOF_H
#define TANDEM_ROOF_H

#include <stddef.h>
#include <stdint.h>

// roof_read reads n bytes (a multiple of 512) and returns something of them.
uint64_t roof_read(const void *p, size_t n);

// Each runs its instruction rounds times twelve, in twelve chains that do not
// wait for one another, and returns the operations done; 0 if this machine has
// no such instruction. A product and its addition are two operations.
double roof_fma(long rounds);    // float32 multiply and add
double roof_dot(long rounds);    // bytes by bytes into 32 bits in one instruction (VNNI)
double roof_pairs(long rounds);  // bytes by bytes into 16 bits, and the addition of those

#endif
